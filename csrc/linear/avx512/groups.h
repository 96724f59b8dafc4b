// Products of many tokens with formats of groups: a block of 16 rows is expanded once to bytes and fp32 scales, then tiles of tokens meet it
// there, whose accumulators stay in registers. Scratch of a call is the expanded block.
#pragma once

#include "linear/direct.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kMostTileTokens = 12;   // as many as registers hold
constexpr size_t kLeastTileTokens = kRecordTokens + 1;
static_assert(kMostTileTokens >= 2 * kLeastTileTokens - 1, "tiles of equal size");

// Of one format: bytes of an expanded group.
template <class F>
constexpr size_t kExpandedBytes = (kGroupQuads + 1 + F::kMinima) * kQuadBytes;

template <class F>
void expand_groups(const uint8_t* block, size_t groups, uint8_t* to) {
    for (size_t group = 0; group < groups; block += kSpanBytes<F>) {
        const uint8_t* record = block + F::kHead;
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, ++group, record += kRecordBytes<F>, to += kExpandedBytes<F>) {
            prefetch_record<kRecordBytes<F>, 1>(record);
            RIDGELINE_UNROLL
            for (size_t t = 0; t < kGroupQuads; ++t) store_quad(to + t * kQuadBytes, F::Coding::quad(record, t));
            Vec scale, minimum;
            F::floats(block, record + F::Coding::kBytes, &scale, &minimum);
            float* floats = reinterpret_cast<float*>(to + kGroupQuads * kQuadBytes);
            store(floats, scale);
            if (F::kMinima) store(floats + kLanes, minimum);
        }
    }
}

// What is taken off a group's integers: `zero` times the sum of codes; and minima, or zeros of rows.
enum class Off { kNothing, kMinima, kZeros };
template <class F>
constexpr Off kOff = !F::kMinima ? Off::kNothing : kZerosOfRows<F> ? Off::kZeros : Off::kMinima;

// Products of `quads` quads with M tokens onto their integers.
template <size_t M>
__attribute__((always_inline)) inline void add_quads(const uint8_t* quads, size_t count, const int8_t* codes, size_t stride, Ints* dot) {
#pragma GCC unroll 1
    for (size_t t = 0; t < count; ++t) {
        const Quad w = load_quad(quads + t * kQuadBytes);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) dot[i] = products<8>(dot[i], w, codes + i * stride + 4 * t);
    }
}

// Sums [M, 16] of an expanded block.
template <Off kWhat, size_t M>
void sum_groups(const uint8_t* group, const Tokens& x, int zero_code, float* sums) {
    constexpr size_t kBytes = (kGroupQuads + 1 + (kWhat != Off::kNothing)) * kQuadBytes;
    Vec acc[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    for (size_t g = 0; g < x.groups; ++g, group += kBytes) {
        int32_t sum[M];
        Ints dot[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const int32_t* s = x.sums + (i * x.groups + g) * 2;
            sum[i] = s[0] + s[1];
            dot[i] = ints(-zero_code * sum[i]);
        }
        add_quads<M>(group, kGroupQuads, x.codes + g * kCodeGroup, x.stride, dot);
        const float* floats_of = reinterpret_cast<const float*>(group + kGroupQuads * kQuadBytes);
        const Vec scale = load(floats_of);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const float x_scale = x.scales[i * x.groups + g];
            const Vec whole = kWhat == Off::kZeros ? without_zeros(dot[i], -static_cast<float>(sum[i]), load(floats_of + kLanes)) : floats(dot[i]);
            acc[i] = add_part(acc[i], whole, scale, x_scale);
            if (kWhat == Off::kMinima) acc[i] = add_minimum(acc[i], sum[i], load(floats_of + kLanes), x_scale);
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) store(sums + i * kLanes, acc[i]);
}
template <Off kWhat, size_t M = kMostTileTokens>
void sum_groups_of(size_t m, const uint8_t* group, const Tokens& x, int zero_code, float* sums) {
    if constexpr (M > kLeastTileTokens)
        if (m < M) return sum_groups_of<kWhat, M - 1>(m, group, x, zero_code, sums);
    sum_groups<kWhat, M>(group, x, zero_code, sums);
}

// put(first token, tokens) for tiles of equal size, or that differ by one, of m tokens.
template <class Put>
inline void each_tile(size_t m, const Put& put) {
    const size_t tiles = (m + kMostTileTokens - 1) / kMostTileTokens;
    for (size_t i = 0; i < tiles; ++i) put(m * i / tiles, m * (i + 1) / tiles - m * i / tiles);
}

// Sums [tokens, 16] of m tokens with `count` blocks of groups, `bytes` from each other: put(block, first token, tokens, sums). False: rows are
// too long for scratch.
template <class F, class Put>
bool sum_tiled(const uint8_t* data, size_t bytes, size_t count, const Tokens& x, size_t m, uint8_t* scratch, const Put& put) {
    if (m < kLeastTileTokens || x.groups * kExpandedBytes<F> > kLinearScratch) return false;
    float sums[kMostTileTokens * kLanes];
    for (size_t block = 0; block < count; ++block) {
        expand_groups<F>(data + block * bytes, x.groups, scratch);
        each_tile(m, [&](size_t from, size_t here) {
            sum_groups_of<kOff<F>>(here, scratch, tokens_from(x, from), F::kZero, sums);
            put(block, from, here, sums);
        });
    }
    return true;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
