// Tiles of products with float weights: inputs, ascending, onto the sums [tokens, 2, 16] of a few tokens with two blocks of 16 rows.
//
// `block_tile` reads one block as it is packed, and may leave it in fp32 in a panel [inputs, 2, 16]; `pair_tile` reads both blocks of one.
#pragma once

#include "linear/linear.h"
#include "linear/float_steps.h"
#include "linear/quads.h"
#include "simd/panel.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr size_t kBlockTokens = 12, kPairTokens = 12;    // of a tile, as many as registers bear: at most, exactly
#elif defined(__AVX2__)
constexpr size_t kBlockTokens = 6, kPairTokens = kPanelRows;
#else
constexpr size_t kBlockTokens = 1, kPairTokens = 1;
#endif
constexpr size_t kPairFetched = 16;
constexpr size_t kPairLanes = 2 * kLanes;                // floats from token to token of sums, from input to input of a panel

constexpr size_t element_bytes(int format) { return format == kF32 ? 4 : 2; }

template <int Format>
inline Vec weights(const uint8_t* p) {
    if (Format == kF32) return load(reinterpret_cast<const float*>(p));
    if (Format == kF16) return load_half(reinterpret_cast<const uint16_t*>(p));
    return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

// Sixteen weights in the order that is quickest to widen, which is that of panels and sums; and the order of rows again.
#if defined(__AVX2__) && !defined(__AVX512F__)
template <int Format>
inline Vec shuffled(const uint8_t* p) {
    if (Format != kBF16) return weights<Format>(p);
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), odd = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(_mm256_and_si256(pairs, odd))};
}
template <int Format>
inline Vec ordered(Vec x) {
    if (Format != kBF16) return x;
    const __m256 low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
#else
template <int Format>
inline Vec shuffled(const uint8_t* p) { return weights<Format>(p); }
template <int Format>
inline Vec ordered(Vec x) { return x; }
#endif

// What a tile reads: x, `stride` floats from token to token, and `inputs` of it and of the weights.
struct Span {
    const float* x;
    size_t stride, inputs;
};

// How a tile reads a block: in one stream from memory; or from the second-level cache, while it fetches half as many bytes of `ahead` to there,
// and maybe leaves it in a panel.
enum Read { kStream, kFetch, kExpand };

template <int Format, Read kRead, size_t M>
inline void add_block(const uint8_t* data, const uint8_t* ahead, float* panel, const Span& span, float* sums) {
    constexpr size_t kBytes = kLanes * element_bytes(Format);
    size_t done = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (kRead != kStream) done = span.inputs / kBlockSteps * kBlockSteps;
    if (done > 0) block_turns<Format, kRead == kExpand, M>(data, ahead, panel, span.x, span.stride, done / kBlockSteps, sums);
    if (done > 0 && done == span.inputs) return;
#endif
    Vec sum[M];
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) sum[t] = load(sums + t * kPairLanes);
    for (size_t i = done; i < span.inputs; ++i) {
        if (kRead == kStream && Format != kF32) __builtin_prefetch(ahead + i * kBytes);  // wider ones the processor foresees by itself
        const Vec w = shuffled<Format>(data + i * kBytes);
        if (kRead == kExpand) store(panel + i * kPairLanes, w);
        RIDGELINE_UNROLL
        for (size_t t = 0; t < M; ++t) sum[t] = fma(w, all(span.x[t * span.stride + i]), sum[t]);
    }
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) store(sums + t * kPairLanes, sum[t]);
}

// `m` tokens, Least to M, with one block.
template <int Format, Read kRead, size_t Least, size_t M>
void block_tile(size_t m, const uint8_t* data, const uint8_t* ahead, float* panel, const Span& span, float* sums) {
    if constexpr (M > Least)
        if (m < M) return block_tile<Format, kRead, Least, M - 1>(m, data, ahead, panel, span, sums);
    add_block<Format, kRead, M>(data, ahead, panel, span, sums);
}

// kPairTokens tokens with both blocks of a panel. Unless `ahead` is null, kPairFetched bytes an input are fetched from
// there, and from `apart` bytes behind.
inline void pair_tile(const float* panel, [[maybe_unused]] const uint8_t* ahead, [[maybe_unused]] size_t apart, const Span& span, float* sums) {
    size_t done = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
    done = span.inputs / kPanelSteps * kPanelSteps;
    if (done > 0) panel_turns(panel, ahead, apart, span.x, span.stride, done / kPanelSteps, sums, kPairLanes);
#endif
    if (done == span.inputs) return;
    Vec sum[kPairTokens][2];
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kPairTokens; ++t) sum[t][0] = load(sums + t * kPairLanes), sum[t][1] = load(sums + t * kPairLanes + kLanes);
    for (size_t i = done; i < span.inputs; ++i) {
        const Vec w = load(panel + i * kPairLanes), v = load(panel + i * kPairLanes + kLanes);
        RIDGELINE_UNROLL
        for (size_t t = 0; t < kPairTokens; ++t) {
            const Vec x = all(span.x[t * span.stride + i]);
            sum[t][0] = fma(w, x, sum[t][0]), sum[t][1] = fma(v, x, sum[t][1]);
        }
    }
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kPairTokens; ++t) store(sums + t * kPairLanes, sum[t][0]), store(sums + t * kPairLanes + kLanes, sum[t][1]);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
