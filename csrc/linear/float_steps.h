// The loop over one block of float weights at the AVX2 level, of instructions whose order the compiler leaves alone.
//
// Weights are widened once for six tokens, bf16 by halves of 32-bit words, and a turn takes several inputs: beside two multiply-adds a cycle
// there is room for little else.
#pragma once

#include "linear/ordered.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kBlockSteps = 4;        // inputs a turn

struct __attribute__((may_alias, packed)) HalfRow { uint8_t value[16]; };
struct UpperHalves { uint32_t value[8]; };
alignas(32) constexpr UpperHalves kUpperHalves = {{0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u}};

inline __m256 ordered_spread(const float* p) {
    __m256 r;
    asm volatile("vbroadcastss %1, %0" : "=x"(r) : "m"(*p));
    return r;
}
inline __m256 ordered_floats(const void* p) {
    __m256 r;
    asm volatile("vmovups %1, %0" : "=x"(r) : "m"(*static_cast<const Row*>(p)));
    return r;
}
inline __m256 ordered_halves(const void* p) {
    __m256 r;
    asm volatile("vcvtph2ps %1, %0" : "=x"(r) : "m"(*static_cast<const HalfRow*>(p)));
    return r;
}
inline void ordered_store(float* p, __m256 x) { asm volatile("vmovups %1, %0" : "=m"(*reinterpret_cast<Row*>(p)) : "x"(x)); }
inline void ordered_fma(__m256& sum, __m256 w, __m256 x) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x)); }

// Sixteen weights as `shuffled` has them.
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

// M tokens with one block, whole turns. Each fetches half as many bytes of `ahead` as it reads.
template <int Format, bool kKeep, size_t M>
inline void block_turns(const uint8_t* data, const uint8_t* ahead, float* panel, const float* x, size_t stride, size_t turns, float* sums) {
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
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#endif
