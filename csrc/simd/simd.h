// Sixteen floats, and sixteen rows of codes, at a time: one vocabulary for every ISA level. The same operations in the same order give the
// same bits at every level, so a kernel that is written in it needs no branch on the level. This is the only place that asks for the level.
//
//   Vec      sixteen floats; arithmetic, sum_of, largest_of, loads that widen
//   Part     one register of a Vec
//   Quad     64 unsigned codes: or_, shift_right, shift_left (under a mask), look_up
//   Ints     sixteen integers of 32 bits; Pairs: sums of products on their way to Ints, which hold `kRun` of them
//   Lanes    words of 64 bits
//
// For kernel sources only: everything lives in the namespace of the level that includes it.
#pragma once

#if defined(__AVX512VNNI__)
#include "simd/avx512.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "simd/neon.h"
#else
#include "simd/scalar.h"
#endif

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// The first n < 16 floats, the others `rest`.
inline Vec load_first(const float* p, size_t n, float rest = 0.0f) {
    float part[kLanes];
    for (size_t i = 0; i < kLanes; ++i) part[i] = i < n ? p[i] : rest;
    return load(part);
}
inline void store_first(float* p, Vec a, size_t n) {
    float part[kLanes];
    store(part, a);
    memcpy(p, part, n * sizeof(float));
}

// e^x, within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN of NaN. Cephes' argument reduction and polynomial.
inline Vec exponential(Vec x) {
    const Vec low = all(-87.33654f), high = all(88.72283f);
    const Vec inside = smaller(high, larger(low, x));  // NaN stays: both give the second where either is NaN
    const Vec n = smaller(nearest(inside * all(1.44269504f)), all(127.0f));
    const Vec r = fma(n, all(2.12194440e-4f), fma(n, all(-0.693359375f), inside));
    Vec p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = fma(p, r * r, r + all(1.0f));
    Vec y = p * power_of_two(n);
    y = where_below(x, low, zero(), y);
    return where_below(high, x, all(INFINITY), y);
}

// tanh x, within 4 units in the last place: (1 - t) / (1 + t) with t = e^(-2 |x|), the sign put back; the Taylor series below 1/4.
inline Vec hyperbolic_tangent(Vec x) {
    const Vec t = exponential(magnitude(x) * all(-2.0f)), square = x * x;
    const Vec y = (all(1.0f) - t) / (all(1.0f) + t);
    Vec p = fma(square, all(62.0f / 2835.0f), all(-17.0f / 315.0f));
    p = fma(p, square, all(2.0f / 15.0f));
    p = fma(p, square, all(-1.0f / 3.0f));
    const Vec near = fma(p * square, x, x), far = where_below(x, zero(), zero() - y, y);
    return where_below(magnitude(x), all(0.25f), near, far);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
