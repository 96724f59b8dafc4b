// Small floats under scales, as products with float weights read them: e4m3 of checkpoints, one fp32 scale for `group` inputs of a row; NVFP4,
// one scale of e4m3 without a sign for 16 inputs, and with a group one scale of all.
//
// A block of 16 rows is a head, which NVFP4 with a group has, and records of a group each: 16 scales, then codes. Weight: value * scale, rounded
// once to fp32, whatever becomes of it: products have the bits of those with the same weights in fp32.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr bool is_scaled(int format) { return format == kFP8 || format == kNVFP4; }

template <int Format>
struct Scaled;

// Codes [inputs, 16] behind 16 scales fp32. Values are 2^-120 of what they mean, and scales, all below 2^8, as much larger. A row's scale is NaN
// where one of its codes is: so is its product.
template <>
struct Scaled<kFP8> {
    static constexpr size_t kScales = 64, kTurn = 4, kLine = 4;  // bytes; inputs whose loop is unrolled, and in a line of a cache
    static size_t group(const Matrix& matrix) { return matrix.group; }
    static size_t code_bytes(size_t inputs) { return inputs * kBlockRows; }
    static size_t head_bytes(const Matrix&) { return 0; }
    static const float* head(const Matrix&, const uint8_t*) { return nullptr; }
    static Vec scale(const uint8_t* record, const float*) { return load(reinterpret_cast<const float*>(record)) * all(0x1p120f); }
    static Vec value(const uint8_t* codes, size_t input) { return load_e4m3(codes + input * kBlockRows); }
};

constexpr size_t kHeadFloats = 3 * kBlockRows;
alignas(64) constexpr float kNoHead[kHeadFloats] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Codes [8, 16] behind 16 scales of a byte: the lower bits are input i, the upper ones input i + 8. Values are doubled, scales
// halved and without their sign; 0x7f is 0. Head: factors, divisors less than nothing, and again factors [3, 16], for what a
// quotient of the scale lacks; a product lacks nothing.
template <>
struct Scaled<kNVFP4> {
    static constexpr size_t kScales = 16, kTurn = 16, kLine = 8;
    static size_t group(const Matrix&) { return 16; }
    static size_t code_bytes(size_t inputs) { return inputs / 2 * kBlockRows; }
    static size_t head_bytes(const Matrix& matrix) { return matrix.group ? kHeadFloats * sizeof(float) : 0; }
    static const float* head(const Matrix& matrix, const uint8_t* block) { return matrix.group ? reinterpret_cast<const float*>(block) : kNoHead; }
    static Vec scale(const uint8_t* record, const float* head) {
        const Vec small = load_e4m3(record);
        const Vec half = where_below(all(0x1.cp-112f), small, zero(), magnitude(small)) * all(0x1p119f), found = half * load(head);
        return fma(fma(found, load(head + kBlockRows), half), load(head + 2 * kBlockRows), found);
    }
    static Vec value(const uint8_t* codes, size_t input) { return load_e2m1_doubled(codes + input % 8 * kBlockRows, input / 8 * 4); }
};

template <int Format>
size_t scaled_bytes(const Matrix& matrix) {
    using S = Scaled<Format>;
    const size_t group = S::group(matrix);
    return S::head_bytes(matrix) + (matrix.k + group - 1) / group * S::kScales + S::code_bytes(matrix.k);
}

// Where the record of a group begins in its block.
template <int Format>
size_t record_place(const Matrix& matrix, size_t group) {
    using S = Scaled<Format>;
    return S::head_bytes(matrix) + group * (S::kScales + S::code_bytes(S::group(matrix)));
}

constexpr size_t kScaledNear = 1024;     // bytes that each stream is fetched ahead

// Calls `each` for some inputs of a group, ascending: (input, where its turn begins, its place there, whether a line of a cache begins with it).
// Places are known to the compiler, and so are the bits that are taken from a byte. A group of NVFP4 is one turn.
template <int Format, class Each>
__attribute__((always_inline)) inline void for_inputs(const uint8_t* codes, size_t inputs, const Each& each) {
    using S = Scaled<Format>;
    size_t turn = 0;
    for (; turn + S::kTurn <= inputs; turn += S::kTurn) {
        const uint8_t* at = codes + S::code_bytes(turn);
        RIDGELINE_UNROLL
        for (size_t place = 0; place < S::kTurn; ++place) each(turn + place, at, place, place % S::kLine == 0);
    }
    for (; turn < inputs; ++turn) each(turn, codes + S::code_bytes(turn), size_t{0}, true);
}

// Some inputs of a block in fp32: [inputs, 16].
template <int Format>
void widen_block(const Matrix& matrix, size_t block, size_t from, size_t inputs, float* to) {
    using S = Scaled<Format>;
    const uint8_t* data = matrix.data + block * scaled_bytes<Format>(matrix);
    const size_t group = S::group(matrix), end = from + inputs;
    while (from < end) {
        const uint8_t *record = data + record_place<Format>(matrix, from / group), *codes = record + S::kScales;
        const size_t first = from % group, last = end - from + first < group ? end - from + first : group;
        const Vec scale = S::scale(record, S::head(matrix, data));
        codes += S::code_bytes(first);
        for_inputs<Format>(codes, last - first, [&](size_t i, const uint8_t* turn, size_t place, bool line) __attribute__((always_inline)) {
            if (line) __builtin_prefetch(turn + S::code_bytes(place) + kScaledNear);
            store(to + i * kLanes, S::value(turn, place) * scale);
        });
        from += last - first, to += (last - first) * kLanes;
    }
}

// One token with `count` blocks, kStreams of them at a time, as `multiply_streams` of integers.
template <int Format, size_t kStreams>
void multiply_scaled_token(const Matrix& matrix, const float* x, float* out, size_t first, size_t count) {
    using S = Scaled<Format>;
    const size_t bytes = scaled_bytes<Format>(matrix), apart = count / kStreams, stride = apart * bytes;
    for (size_t block = first; block < first + apart; ++block) {
        const uint8_t* data = matrix.data + block * bytes;
        Vec sum[kStreams];
        for (Vec& each : sum) each = zero();
        const float *at = x, *end = x + matrix.k;
        for (size_t group = 0; at < end; ++group) {
            const uint8_t* record = data + record_place<Format>(matrix, group);
            const size_t left = static_cast<size_t>(end - at), inputs = left < S::group(matrix) ? left : S::group(matrix);
            Vec scale[kStreams];
            for (size_t stream = 0; stream < kStreams; ++stream) scale[stream] = S::scale(record + stream * stride, S::head(matrix, data + stream * stride));
            const uint8_t* codes = record + S::kScales;
            for_inputs<Format>(codes, inputs, [&](size_t i, const uint8_t* turn, size_t place, bool line) __attribute__((always_inline)) {
                const Vec one = all(at[i]);
                RIDGELINE_UNROLL
                for (size_t stream = 0; stream < kStreams; ++stream) {
                    if (line) __builtin_prefetch(turn + stream * stride + S::code_bytes(place) + kScaledNear);
                    sum[stream] = fma(S::value(turn + stream * stride, place) * scale[stream], one, sum[stream]);
                }
            });
            at += inputs;
        }
        for (size_t stream = 0; stream < kStreams; ++stream) {
            const size_t of = block + stream * apart, columns = columns_of(matrix, of);
            columns == kBlockRows ? store(out + of * kBlockRows, sum[stream]) : store_first(out + of * kBlockRows, sum[stream], columns);
        }
    }
    if constexpr (kStreams > 1) multiply_scaled_token<Format, kStreams / 2>(matrix, x, out, first + kStreams * apart, count - kStreams * apart);
}

// `m` tokens, M at most, with one block: each weight is widened once for all of them.
template <int Format, size_t M>
void multiply_scaled_tile(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t block) {
    if constexpr (M > 1)
        if (m < M) return multiply_scaled_tile<Format, M - 1>(matrix, x, x_stride, m, to, block);
    using S = Scaled<Format>;
    const uint8_t* data = matrix.data + block * scaled_bytes<Format>(matrix);
    const size_t group = S::group(matrix), columns = columns_of(matrix, block);
    const float* head = S::head(matrix, data);
    data += S::head_bytes(matrix);
    Vec sum[M];
    for (Vec& each : sum) each = zero();
    for (size_t from = 0; from < matrix.k; from += group) {
        const size_t inputs = matrix.k - from < group ? matrix.k - from : group;
        const Vec scale = S::scale(data, head);
        const uint8_t* codes = data + S::kScales;
        for_inputs<Format>(codes, inputs, [&](size_t i, const uint8_t* turn, size_t place, bool line) __attribute__((always_inline)) {
            if (line) __builtin_prefetch(turn + S::code_bytes(place) + kScaledNear);
            const Vec w = S::value(turn, place) * scale;
            RIDGELINE_UNROLL
            for (size_t t = 0; t < M; ++t) sum[t] = fma(w, all(x[t * x_stride + from + i]), sum[t]);
        });
        data = codes + S::code_bytes(inputs);
    }
    for (size_t t = 0; t < M; ++t) {
        float* out = to.out + t * to.stride + block * kBlockRows;
        columns == kBlockRows ? store(out, sum[t]) : store_first(out, sum[t], columns);
    }
}

// The tokens of a tile at most.
template <int Format>
void multiply_scaled(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count) {
    if (m == 1) return multiply_scaled_token<Format, 4>(matrix, x, to.out, first, count);
    for (size_t block = first; block < first + count; ++block) multiply_scaled_tile<Format, kFloatTokens>(matrix, x, x_stride, m, to, block);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
