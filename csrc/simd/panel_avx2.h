// Three rows times a panel of 32 columns at the AVX2 level, in assembly: all sixteen registers are taken, and a compiler spills some of them.
//
// Beside two multiply-adds a cycle there is room for little else: on a core that somebody shares every further load and instruction costs. Three
// rows and four vectors take seven loads for twelve multiply-adds, the fewest that there are.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kPanelRows = 3, kPanelColumns = 32, kPanelSteps = 8;

#define RIDGELINE_ONTO(a, b, c)                                                                                              \
    "vfmadd231ps %%ymm15, %%ymm12, %%ymm" #a "\n\tvfmadd231ps %%ymm15, %%ymm13, %%ymm" #b "\n\tvfmadd231ps %%ymm15, %%ymm14, %%ymm" #c "\n\t"
#define RIDGELINE_STEP(i)                                                                                                    \
    "vbroadcastss " #i "*4(%[x]), %%ymm12\n\tvbroadcastss " #i "*4(%[x],%[stride]), %%ymm13\n\t"                             \
    "vbroadcastss " #i "*4(%[x],%[stride],2), %%ymm14\n\t"                                                                   \
    "vmovups " #i "*128(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(0, 4, 8) "vmovups " #i "*128+32(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(1, 5, 9)    \
    "vmovups " #i "*128+64(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(2, 6, 10) "vmovups " #i "*128+96(%[panel]), %%ymm15\n\t" RIDGELINE_ONTO(3, 7, 11)
#define RIDGELINE_FOUR(f, at, a, b, c, d) f("0", at, a) f("32", at, b) f("64", at, c) f("96", at, d)
#define RIDGELINE_TAKE(column, row, sum) "vmovups " column "(%[sums]" row "), %%ymm" #sum "\n\t"
#define RIDGELINE_PUT(column, row, sum) "vmovups %%ymm" #sum ", " column "(%[sums]" row ")\n\t"
#define RIDGELINE_SUMS(f) RIDGELINE_FOUR(f, "", 0, 1, 2, 3) RIDGELINE_FOUR(f, ",%[pitch]", 4, 5, 6, 7) RIDGELINE_FOUR(f, ",%[pitch],2", 8, 9, 10, 11)

#define RIDGELINE_FETCH                                                                                                      \
    "prefetcht1 (%[ahead])\n\tprefetcht1 64(%[ahead])\n\tprefetcht1 (%[ahead],%[apart])\n\tprefetcht1 64(%[ahead],%[apart])\n\tadd $128, %[ahead]\n\t"
#define RIDGELINE_TURNS(fetch)                                                                                               \
    asm volatile(RIDGELINE_SUMS(RIDGELINE_TAKE) ".p2align 6\n1:\n\t" fetch RIDGELINE_STEP(0) RIDGELINE_STEP(1) RIDGELINE_STEP(2) RIDGELINE_STEP(3)   \
                 RIDGELINE_STEP(4) RIDGELINE_STEP(5) RIDGELINE_STEP(6) RIDGELINE_STEP(7)                                     \
                 "add $8*4, %[x]\n\tadd $8*128, %[panel]\n\tdec %[turns]\n\tjnz 1b\n\t" RIDGELINE_SUMS(RIDGELINE_PUT)          \
                 : [x] "+r"(x), [panel] "+r"(panel), [turns] "+r"(turns), [ahead] "+r"(ahead)                                \
                 : [stride] "r"(stride * sizeof(float)), [sums] "r"(sums), [pitch] "r"(pitch * sizeof(float)), [apart] "r"(apart)   \
                 : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",     \
                   "xmm12", "xmm13", "xmm14", "xmm15")

// sums [3, 32] += x [3, inputs] * panel [inputs, 32], inputs ascending, kPanelSteps per turn, whole turns: returns how many inputs were taken.
// Rows of x are `stride` floats apart, of sums `pitch`. Unless `ahead` is null, each turn fetches two lines of it and two from `apart` bytes
// behind it.
inline size_t panel_turns(const float* panel, const uint8_t* ahead, size_t apart, const float* x, size_t stride, size_t inputs, float* sums,
                          size_t pitch) {
    const size_t done = inputs / kPanelSteps * kPanelSteps;
    size_t turns = inputs / kPanelSteps;
    if (turns == 0) return 0;
    if (ahead) RIDGELINE_TURNS(RIDGELINE_FETCH);
    else RIDGELINE_TURNS("");
    return done;
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
