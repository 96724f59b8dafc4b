// Walks over the numbers of a row, for kernels of elements: vectors, and a last one that is not full.
#pragma once

#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// f(start, lanes) over a row; the last call may have fewer than sixteen lanes.
template <typename F>
inline void each(size_t width, F f) {
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes) f(i, kLanes);
    if (i < width) f(i, width - i);
}
inline Vec take(const float* p, size_t n) { return n == kLanes ? load(p) : load_first(p, n); }
inline void put(float* p, Vec x, size_t n) { n == kLanes ? store(p, x) : store_first(p, x, n); }

inline Vec silu(Vec x) { return x / (all(1.0f) + exponential(zero() - x)); }

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
