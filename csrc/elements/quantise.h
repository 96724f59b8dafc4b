// Activations in codes of 8 bits, a group at a time: for the op `quantise`, and for ops that quantise what they read.
#pragma once

#include <math.h>
#include <string.h>

#include "linear/linear.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Below this a group is zero: 127 / amax would overflow.
constexpr float kTiny = 1e-36f;

// One group, a multiple of kCodeGroup inputs; its scale stands once for each kCodeGroup.
__attribute__((always_inline)) inline void quantise_group(const float* x, size_t group, int8_t* codes, float* scales, int32_t* sums) {
    const Vec first = load(x);
    Vec test = first - first, most = magnitude(first);  // x - x is NaN where x is not finite, else 0
    for (size_t i = kLanes; i < group; i += kLanes) {
        const Vec next = load(x + i);
        test = test + (next - next);
        most = larger(most, magnitude(next));
    }
    const float amax = largest_of(most);
    const bool finite = sum_of(test) == 0.0f, live = finite && amax >= kTiny;
    const float scale = !finite ? NAN : live ? amax / 127.0f : 0.0f;
    for (size_t i = 0; i < group / kCodeGroup; ++i) scales[i] = scale;
    if (!live) {
        memset(codes, 0, group);
        memset(sums, 0, group / kLanes * sizeof *sums);
        return;
    }
    const Vec inverse = all(127.0f / amax);
    for (size_t i = 0; i < group; i += kLanes) sums[i / kLanes] = store_int8(codes + i, load(x + i) * inverse);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
