// The loop over one block of float weights, of instructions whose order the compiler leaves alone.
//
// Weights are widened once for six tokens, bf16 by halves of 32-bit words, and a turn takes several inputs: beside two multiply-adds a cycle
// there is room for little else.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kBlockSteps = 4;        // inputs per turn

// Sixteen weights as `load_weights` has them.
template <int Format>
inline Vec ordered_weights(const uint8_t* p) {
    if constexpr (Format == kF32) return {ordered_floats(p), ordered_floats(p + 32)};
    if constexpr (Format == kF16) return {ordered_halves(p), ordered_halves(p + 16)};
    __m256 low, high = ordered_floats(p);
    asm volatile("vpslld $16, %1, %0" : "=x"(low) : "x"(high));
    asm volatile("vandps %1, %0, %0" : "+x"(high) : "m"(kUpperHalves));
    return {low, high};
}

// One input of a block for M tokens.
template <int Format, bool kKeep, size_t M>
__attribute__((always_inline)) inline void block_step(const uint8_t* data, float* panel, const float* x, size_t stride, __m256* low, __m256* high) {
    const Vec w = ordered_weights<Format>(data);
    if (kKeep) ordered_store(panel, w.a), ordered_store(panel + 8, w.b);
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) {
        const __m256 one = ordered_spread(x + t * stride);
        ordered_fma(low[t], w.a, one);
        ordered_fma(high[t], w.b, one);
    }
}

// M tokens with one block, whole turns of `inputs`: returns how many were taken. Each fetches half as many bytes of `ahead` as it reads.
template <int Format, bool kKeep, size_t M>
inline size_t block_turns(const uint8_t* data, const uint8_t* ahead, float* panel, const float* x, size_t stride, size_t inputs, float* sums) {
    const size_t done = inputs / kBlockSteps * kBlockSteps;
    size_t turns = inputs / kBlockSteps;
    if (turns == 0) return 0;
    constexpr size_t kBytes = kLanes * (Format == kF32 ? 4 : 2), kWide = kKeep ? 2 * kLanes : 0, kAhead = kBlockSteps * kBytes / 2;
    __m256 low[M], high[M];
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) low[t] = _mm256_loadu_ps(sums + t * 2 * kLanes), high[t] = _mm256_loadu_ps(sums + t * 2 * kLanes + 8);
    do {
        RIDGELINE_UNROLL
        for (size_t line = 0; line < kAhead; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        block_step<Format, kKeep, M>(data, panel, x, stride, low, high);
        block_step<Format, kKeep, M>(data + kBytes, panel + kWide, x + 1, stride, low, high);
        block_step<Format, kKeep, M>(data + 2 * kBytes, panel + 2 * kWide, x + 2, stride, low, high);
        block_step<Format, kKeep, M>(data + 3 * kBytes, panel + 3 * kWide, x + 3, stride, low, high);
        data += kBlockSteps * kBytes, ahead += kAhead, x += kBlockSteps, panel += kBlockSteps * kWide;
    } while (--turns > 0);
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) _mm256_storeu_ps(sums + t * 2 * kLanes, low[t]), _mm256_storeu_ps(sums + t * 2 * kLanes + 8, high[t]);
    return done;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
