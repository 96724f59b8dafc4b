// Sixteen floats at a time, at every ISA level: one AVX-512 register, two AVX2 registers, or an array. The same operations in the same
// order give the same bits at every level, so a kernel written with `Vec` needs no branch on the level.
//
// For kernel sources only: everything lives in the namespace of the level that includes it.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kLanes = 16;

#if defined(__AVX512F__)

struct Vec { __m512 v; };
inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec all(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }    // b where either is NaN
inline Vec smaller(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec magnitude(Vec a) { return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)))}; }
inline Vec nearest(Vec a) { return {_mm512_roundscale_ps(a.v, 0)}; }     // to even
inline Vec power_of_two(Vec n) {                                         // 2^n for whole -126 <= n <= 127
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
inline Vec where_nan(Vec test, Vec yes, Vec no) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(test.v, test.v, _CMP_UNORD_Q), no.v, yes.v)}; }
inline Vec where_below(Vec a, Vec b, Vec yes, Vec no) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)}; }
inline Vec load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
inline Vec load_half(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
// Whole numbers of -127 … 127 to the nearest, ties to even; returns their sum.
inline int32_t store_int8(int8_t* p, Vec x) {
    const __m512i whole = _mm512_cvtps_epi32(x.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(whole));
    return _mm512_reduce_add_epi32(whole);
}
inline Vec load_int8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))}; }

#elif defined(__AVX2__)

struct Vec { __m256 a, b; };
inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec all(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline Vec operator+(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec operator-(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec operator*(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec operator/(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Vec larger(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec smaller(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec magnitude(Vec x) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline Vec nearest(Vec x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
inline __m256 power_of_two_half(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Vec power_of_two(Vec n) { return {power_of_two_half(n.a), power_of_two_half(n.b)}; }
inline Vec where_nan(Vec t, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(t.a, t.a, _CMP_UNORD_Q)), _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(t.b, t.b, _CMP_UNORD_Q))};
}
inline Vec where_below(Vec x, Vec y, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)), _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline __m256 widen_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline Vec load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
inline Vec load_half(const void* p) {
    const __m128i* halves = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline int32_t store_int8(int8_t* p, Vec x) {
    const __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
    const __m256i both = _mm256_add_epi32(a, b);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}
inline Vec load_int8(const int8_t* p) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(c)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(c, 8)))};
}

#else

struct Vec { float v[kLanes]; };
#define RIDGELINE_EACH(expression) Vec r; for (size_t i = 0; i < kLanes; ++i) r.v[i] = (expression); return r
inline float float_of_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
inline float float_of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
        const float value = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -value : value;
    }
    return float_of_bits(sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13));
}
inline Vec zero() { RIDGELINE_EACH(0.0f); }
inline Vec all(float x) { RIDGELINE_EACH(x); }
inline Vec load(const float* p) { RIDGELINE_EACH(p[i]); }
inline void store(float* p, Vec a) { memcpy(p, a.v, sizeof a.v); }
inline Vec operator+(Vec a, Vec b) { RIDGELINE_EACH(a.v[i] + b.v[i]); }
inline Vec operator-(Vec a, Vec b) { RIDGELINE_EACH(a.v[i] - b.v[i]); }
inline Vec operator*(Vec a, Vec b) { RIDGELINE_EACH(a.v[i] * b.v[i]); }
inline Vec operator/(Vec a, Vec b) { RIDGELINE_EACH(a.v[i] / b.v[i]); }
inline Vec fma(Vec a, Vec b, Vec c) { RIDGELINE_EACH(fmaf(a.v[i], b.v[i], c.v[i])); }
inline Vec larger(Vec a, Vec b) { RIDGELINE_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline Vec smaller(Vec a, Vec b) { RIDGELINE_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline Vec magnitude(Vec a) { RIDGELINE_EACH(fabsf(a.v[i])); }
inline Vec nearest(Vec a) { RIDGELINE_EACH(nearbyintf(a.v[i])); }
inline Vec power_of_two(Vec n) { RIDGELINE_EACH(float_of_bits(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23)); }
inline Vec where_nan(Vec t, Vec yes, Vec no) { RIDGELINE_EACH(t.v[i] != t.v[i] ? yes.v[i] : no.v[i]); }
inline Vec where_below(Vec a, Vec b, Vec yes, Vec no) { RIDGELINE_EACH(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]); }
inline Vec load_bf16(const uint16_t* p) { RIDGELINE_EACH(float_of_bits(static_cast<uint32_t>(p[i]) << 16)); }
inline Vec load_half(const void* p) {
    uint16_t h[kLanes];
    memcpy(h, p, sizeof h);
    RIDGELINE_EACH(float_of_half(h[i]));
}
inline int32_t store_int8(int8_t* p, Vec x) {
    int32_t total = 0;
    for (size_t i = 0; i < kLanes; ++i) total += p[i] = static_cast<int8_t>(nearbyintf(x.v[i]));
    return total;
}
inline Vec load_int8(const int8_t* p) { RIDGELINE_EACH(static_cast<float>(p[i])); }
#undef RIDGELINE_EACH

#endif

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

// Sum and maximum of the lanes, by halves: lane i and i + 8, then i + 4, i + 2, i + 1; the same tree at every level.
#if defined(__AVX2__)
inline __m256 halves(Vec x, bool upper) {
#if defined(__AVX512F__)
    return upper ? _mm512_extractf32x8_ps(x.v, 1) : _mm512_castps512_ps256(x.v);
#else
    return upper ? x.b : x.a;
#endif
}
inline float sum_of(Vec x) {
    const __m256 eight = _mm256_add_ps(halves(x, false), halves(x, true));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest_of(Vec x) {
    const __m256 eight = _mm256_max_ps(halves(x, false), halves(x, true));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
#else
inline float sum_of(Vec a) {
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
inline float largest_of(Vec a) {
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}
#endif

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
