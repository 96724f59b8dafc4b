// What AVX2 and AVX-512 share: sums over the lanes of a vector from its two halves of 256 bits, and bytes of records.
#pragma once

#include <immintrin.h>
#include <math.h>

#include "simd/common.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

inline float sum_of(__m256 low, __m256 high) {
    const __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest_of(__m256 low, __m256 high) {
    const __m256 eight = _mm256_max_ps(low, high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// The same of eight vectors of which the halves are added: a to d in the lower half of what is returned, e to h in the upper one.
inline __m256 quarters_added(__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}
inline __m256 eighths_added(__m256 x, __m256 y) { return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee)); }
inline __m256 sums_of(__m256 a, __m256 b, __m256 c, __m256 d, __m256 e, __m256 f, __m256 g, __m256 h) {
    const __m256 x = eighths_added(quarters_added(a, e), quarters_added(b, f)), y = eighths_added(quarters_added(c, g), quarters_added(d, h));
    return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd));
}

// Sums of [R, K] vectors, six in all, to rows of scores, `stride` apart. What stands behind the last key of a row may be overwritten.
template <int R, int K>
inline void store_sums_of(const __m256* x, float* scores, size_t stride) {
    if constexpr (R == 2) {
        const __m256 sums = sums_of(x[0], x[1], x[2], x[2], x[3], x[4], x[5], x[5]);
        _mm_storeu_ps(scores, _mm256_castps256_ps128(sums));
        _mm_storeu_ps(scores + stride, _mm256_extractf128_ps(sums, 1));
    } else {
        const __m256 sums = sums_of(x[0], x[1], x[2], x[3], x[4], x[5], x[4], x[5]);
        _mm_storeu_ps(scores, _mm256_castps256_ps128(sums));
        _mm_storel_pi(reinterpret_cast<__m64*>(scores + 4), _mm256_extractf128_ps(sums, 1));
    }
}

template <Field kField>
inline __m128i fields(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
    if (kField == Field::kHigh) return _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
    return kField == Field::kLow ? _mm_and_si128(bytes, low) : bytes;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
