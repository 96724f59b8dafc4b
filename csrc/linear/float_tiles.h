// Tiles of products with float weights: inputs, ascending, onto the sums [tokens, 2, 16] of a few tokens with two blocks of 16 rows.
//
// `block_tile` reads one block as it is packed, and may leave it in fp32 in a panel [inputs, 2, 16]; `pair_tile` reads both blocks of one.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"
#include RIDGELINE_FLOAT_STEPS

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kBlockTokens = kFloatTokens, kPairTokens = kFloatPairTokens;    // of a tile: at most, exactly
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
template <int Format>
inline Vec load_weights(const uint8_t* p) {
    if constexpr (Format == kBF16) return load_bf16_shuffled(p);
    else return weights<Format>(p);
}
template <int Format>
inline Vec in_rows(Vec x) {
    if constexpr (Format == kBF16) return unshuffled_bf16(x);
    else return x;
}

// What a tile reads: x, `stride` floats from token to token, and `inputs` of it and of the weights.
struct Span {
    const float* x;
    size_t stride, inputs;
};

// How a tile reads a block: in one stream from memory; or from the second-level cache, while it fetches half as many bytes of `ahead` to there,
// and maybe leaves it in a panel.
enum Read { kStream, kFetch, kExpand };

template <int Format, bool kKeep, size_t M>
size_t block_turns(const uint8_t* data, const uint8_t* ahead, float* panel, const float* x, size_t stride, size_t inputs, float* sums);

template <int Format, Read kRead, size_t M>
inline void add_block(const uint8_t* data, const uint8_t* ahead, float* panel, const Span& span, float* sums) {
    constexpr size_t kBytes = kLanes * element_bytes(Format);
    size_t done = 0;
    if constexpr (kFloatSteps && kRead != kStream) {
        done = block_turns<Format, kRead == kExpand, M>(data, ahead, panel, span.x, span.stride, span.inputs, sums);
        if (done > 0 && done == span.inputs) return;
    }
    Vec sum[M];
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) sum[t] = load(sums + t * kPairLanes);
    for (size_t i = done; i < span.inputs; ++i) {
        if (kRead == kStream && Format != kF32) __builtin_prefetch(ahead + i * kBytes);  // wider ones the processor fetches by itself
        const Vec w = load_weights<Format>(data + i * kBytes);
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

// kPairTokens tokens with both blocks of a panel. Unless `ahead` is null, kPairFetched bytes per input are fetched from
// there, and from `apart` bytes behind.
inline void pair_tile(const float* panel, const uint8_t* ahead, size_t apart, const Span& span, float* sums) {
    const size_t done = panel_turns(panel, ahead, apart, span.x, span.stride, span.inputs, sums, kPairLanes);
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
