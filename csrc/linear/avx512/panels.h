// Products of many tokens with formats of groups where there is no AMX: two blocks of 16 rows meet a few tokens at a time, so that each broadcast of
// four codes serves both. Straight from their records: taking codes apart runs beside the products, on ports that these leave idle, where writing
// bytes once for all tokens would make them wait.
//
// Zeros come off where sums begin: scratch of a call has -zero * (sum of codes) of each token and group, and for minima -(sum of codes) as fp32.
#pragma once

#include "linear/direct.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kPanelBlocks = 2, kPanelTile = 6;       // whose sums stay in registers, beside their accumulators
constexpr size_t kPanelTokens = 256;     // that two blocks meet while they are near, at most
constexpr size_t kLeastPanel = 7;        // fewer tokens are faster a block at a time
constexpr size_t kLine = 64;

// What the sums of a token's codes are to groups: [tokens, groups].
template <class F>
struct PanelSums {
    static constexpr bool kStarts = F::kZero > 0, kMinus = F::kMinima;
    static constexpr size_t kBytes = 4 * ((kStarts ? 1 : 0) + (kMinus ? 1 : 0));
    static_assert(kBytes > 0, "sums of codes belong to every format of groups");
    int32_t* starts;
    float* minus;

    PanelSums(const Tokens& x, size_t m, uint8_t* scratch) {
        starts = reinterpret_cast<int32_t*>(scratch);
        minus = reinterpret_cast<float*>(starts + (kStarts ? m * x.groups : 0));
        for (size_t i = 0; i < m * x.groups && kStarts; ++i) starts[i] = -F::kZero * (x.sums[2 * i] + x.sums[2 * i + 1]);
        for (size_t i = 0; i < m * x.groups && kMinus; ++i) minus[i] = -static_cast<float>(x.sums[2 * i] + x.sums[2 * i + 1]);
    }
};

// What is read while a tile computes, `step` bytes further with every quad: records that are soon needed, from memory.
struct Fetched {
    const uint8_t* ahead;
    size_t step;
    void next() {
        __builtin_prefetch(ahead, 0, 3);
        ahead += step;
    }
};

// A record of two blocks, `apart` bytes from each other, onto the accumulators [M, 2] of tokens, whose starts and -(sums of codes) lie as their scales.
template <class F, size_t M>
__attribute__((always_inline)) inline void add_pair(const uint8_t* head, const uint8_t* record, size_t apart, const Tokens& x, const int32_t* starts,
                                                    const float* minus, Fetched& fetched, Vec* acc) {
    Ints dot[kPanelBlocks * M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) dot[2 * i] = dot[2 * i + 1] = ints(PanelSums<F>::kStarts ? starts[i * x.groups] : 0);
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads; ++t) {
        fetched.next();
        const Quad w[kPanelBlocks] = {F::Coding::quad(record, t), F::Coding::quad(record + apart, t)};
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kPanelBlocks * M; ++i) dot[i] = products<F::Coding::kBits>(dot[i], w[i % 2], x.codes + i / 2 * x.stride + 4 * t);
    }
    RIDGELINE_UNROLL
    for (size_t b = 0; b < kPanelBlocks; ++b) {
        Vec scale, minimum;
        F::floats(head + b * apart, record + b * apart + F::Coding::kBytes, &scale, &minimum);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            Vec& sum = acc[2 * i + b];
            const float x_scale = x.scales[i * x.groups], minus_sum = PanelSums<F>::kMinus ? minus[i * x.groups] : 0.0f;
            const Vec whole = kZerosOfRows<F> ? without_zeros(dot[2 * i + b], minus_sum, minimum) : floats(dot[2 * i + b]);
            sum = add_part(sum, whole, scale, x_scale);
            if constexpr (F::kMinima && !kZerosOfRows<F>) sum = fma(all(minus_sum), minimum * all(x_scale), sum);
        }
    }
}

// The outputs of two blocks for M tokens.
template <class F, size_t M>
__attribute__((noinline)) void pair_of(const uint8_t* block, size_t apart, Tokens x, const int32_t* starts, const float* minus, Fetched fetched,
                                       float* out, size_t out_stride) {
    Vec acc[kPanelBlocks * M];
    RIDGELINE_UNROLL
    for (Vec& each : acc) each = zero();
    for (const uint8_t* end = block + x.groups / (F::kSpan / kCodeGroup) * kSpanBytes<F>; block < end; block += kSpanBytes<F>) {
        const uint8_t* record = block + F::kHead;
#pragma GCC unroll 1
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, record += kRecordBytes<F>) {
            add_pair<F, M>(block, record, apart, x, starts, minus, fetched, acc);
            x.codes += kCodeGroup, ++x.scales, ++starts, ++minus;
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kPanelBlocks * M; ++i) store(out + i / 2 * out_stride + i % 2 * kBlockRows, acc[i]);
}
template <class F, size_t M = kPanelTile, class... Args>
void pair(size_t m, const Args&... args) {
    if constexpr (M > 1)
        if (m < M) return pair<F, M - 1>(m, args...);
    pair_of<F, M>(args...);
}

// Outputs of `pairs` pairs of blocks for the m tokens of a panel, in tiles that are as even as they can be. They fetch the pair behind theirs.
template <class F>
void multiply_pairs(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t pairs, uint8_t* scratch) {
    const PanelSums<F> sums(x, m, scratch);
    const size_t apart = block_bytes<F>(matrix.k), tiles = (m + kPanelTile - 1) / kPanelTile, quads = x.groups * kGroupQuads;
    const size_t even = (kPanelBlocks * apart + tiles * quads - 1) / (tiles * quads), step = even < kLine ? even : kLine;
    for (size_t block = first; block < first + kPanelBlocks * pairs; block += kPanelBlocks) {
        const uint8_t* data = matrix.data + block * apart;
        for (size_t tile = 0; tile < tiles; ++tile) {
            const size_t from = m * tile / tiles, here = m * (tile + 1) / tiles - from;
            pair<F>(here, data, apart, tokens_from(x, from), sums.starts + from * x.groups, sums.minus + from * x.groups,
                    Fetched{data + kPanelBlocks * apart + tile * quads * step, step}, to.out + from * to.stride + block * kBlockRows, to.stride);
        }
    }
}

template <class F>
void multiply_directly(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch);

// Whether so many tokens are multiplied here, and then their outputs. A block without a fellow, or of fewer outputs, goes the way of few tokens.
template <class F>
bool multiply_panels(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    const size_t whole = count > 0 && columns_of(matrix, first + count - 1) < kBlockRows ? count - 1 : count, pairs = whole / kPanelBlocks;
    const size_t token_bytes = matrix.k / kCodeGroup * PanelSums<F>::kBytes, room = kLinearScratch / token_bytes;
    const size_t panel = room < kPanelTokens ? room : kPanelTokens;
    if (m < kLeastPanel || pairs == 0 || panel < kPanelTile) return false;
    for (size_t from = 0; from < m; from += panel) {
        const Product rows = {to.out + from * to.stride, to.stride};
        multiply_pairs<F>(matrix, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, rows, first, pairs, scratch);
    }
    const size_t paired = pairs * kPanelBlocks;
    if (paired < count) multiply_directly<F>(matrix, x, m, to, first + paired, count - paired, scratch);
    return true;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
