// The loops of tiles of float products at the AVX2 level, in assembly, whose order and registers the compiler leaves alone.
//
// Two multiply-adds a cycle leave room for little else: on a core that somebody shares every further load and instruction costs. So three
// tokens meet four vectors of a panel (seven loads for twelve multiply-adds, all sixteen registers), weights are widened once for six tokens,
// bf16 by halves of 32-bit words, and loops take several inputs a turn.
#pragma once

#include "linear_ordered.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kBlockSteps = 4, kPairSteps = 8;        // inputs a turn

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

#define RIDGELINE_ONTO(a, b, c)                                                                                              \
    "vfmadd231ps %%ymm15, %%ymm12, %%ymm" #a "\n\tvfmadd231ps %%ymm15, %%ymm13, %%ymm" #b "\n\tvfmadd231ps %%ymm15, %%ymm14, %%ymm" #c "\n\t"
#define RIDGELINE_STEP(i)                                                                                                    \
    "vbroadcastss " #i "*4(%[x]), %%ymm12\n\tvbroadcastss " #i "*4(%[x],%[stride]), %%ymm13\n\t"                             \
    "vbroadcastss " #i "*4(%[x],%[stride],2), %%ymm14\n\t"                                                                   \
    "vmovups " #i "*128(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(0, 4, 8) "vmovups " #i "*128+32(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(1, 5, 9)    \
    "vmovups " #i "*128+64(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(2, 6, 10) "vmovups " #i "*128+96(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(3, 7, 11)
#define RIDGELINE_FOUR(f, at, a, b, c, d) f(at, a) f(at "+32", b) f(at "+64", c) f(at "+96", d)
#define RIDGELINE_TAKE(at, sum) "vmovups " at "(%[sums]), %%ymm" #sum "\n\t"
#define RIDGELINE_PUT(at, sum) "vmovups %%ymm" #sum ", " at "(%[sums])\n\t"
#define RIDGELINE_SUMS(f) RIDGELINE_FOUR(f, "0", 0, 1, 2, 3) RIDGELINE_FOUR(f, "128", 4, 5, 6, 7) RIDGELINE_FOUR(f, "256", 8, 9, 10, 11)

#define RIDGELINE_FETCH                                                                                                      \
    "prefetcht1 (%[ahead])\n\tprefetcht1 64(%[ahead])\n\tprefetcht1 (%[ahead],%[apart])\n\tprefetcht1 64(%[ahead],%[apart])\n\tadd $128, %[ahead]\n\t"
#define RIDGELINE_TURNS(fetch)                                                                                               \
    asm volatile(RIDGELINE_SUMS(RIDGELINE_TAKE) ".p2align 6\n1:\n\t" fetch RIDGELINE_STEP(0) RIDGELINE_STEP(1) RIDGELINE_STEP(2) RIDGELINE_STEP(3)   \
                 RIDGELINE_STEP(4) RIDGELINE_STEP(5) RIDGELINE_STEP(6) RIDGELINE_STEP(7)                                     \
                 "add $8*4, %[x]\n\tadd $8*128, %[panel]\n\tdec %[turns]\n\tjnz 1b\n\t" RIDGELINE_SUMS(RIDGELINE_PUT)          \
                 : [x] "+r"(x), [panel] "+r"(panel), [turns] "+r"(turns), [ahead] "+r"(ahead)                                \
                 : [stride] "r"(stride * sizeof(float)), [sums] "r"(sums), [apart] "r"(apart)                                \
                 : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",     \
                   "xmm12", "xmm13", "xmm14", "xmm15")

// Three tokens with a panel, whole turns. Unless `ahead` is null, each fetches two lines of it and two from `apart` bytes behind it.
inline void pair_turns(const float* panel, const uint8_t* ahead, size_t apart, const float* x, size_t stride, size_t turns, float* sums) {
    if (ahead) RIDGELINE_TURNS(RIDGELINE_FETCH);
    else RIDGELINE_TURNS("");
}

#undef RIDGELINE_ONTO
#undef RIDGELINE_STEP
#undef RIDGELINE_FOUR
#undef RIDGELINE_TAKE
#undef RIDGELINE_PUT
#undef RIDGELINE_SUMS
#undef RIDGELINE_FETCH
#undef RIDGELINE_TURNS

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#endif
