// The two products of attention over a tile of keys or values in fp32: scores, and sums of weighted values.
//
// A score is sixteen partial sums over the head's width, ascending, then the tree of `sum_of`; a value's sum has one accumulator a number,
// keys ascending. Neither depends on how many rows or keys are computed together. Widths are whole vectors.
#pragma once

#include "attention_parts.h"
#include "simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

#if defined(__AVX2__)

inline __m256 halves_added(Vec x) {
#if defined(__AVX512F__)
    return _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
#else
    return _mm256_add_ps(x.a, x.b);
#endif
}

inline __m256 quarters_added(Vec x, Vec y) {
    const __m256 a = halves_added(x), b = halves_added(y);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

inline __m256 eighths_added(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
}

// Sums of the lanes of eight vectors, each by the tree of `sum_of`.
inline void sums_of(const Vec* x, float* sums) {
    const __m256 a = eighths_added(quarters_added(x[0], x[4]), quarters_added(x[1], x[5]));
    const __m256 b = eighths_added(quarters_added(x[2], x[6]), quarters_added(x[3], x[7]));
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
}

#else

inline void sums_of(const Vec* x, float* sums) {
    for (size_t i = 0; i < 8; ++i) sums[i] = sum_of(x[i]);
}

#endif

// Scores of R rows of queries, `width` apart, with K keys; R * K <= 8. Scores of a row are consecutive.
template <int R, int K>
inline void score_block(const float* q, const float* const* keys, size_t width, float* scores) {
    Vec sum[8];
    for (int i = 0; i < 8; ++i) sum[i] = zero();
    for (size_t d = 0; d < width; d += kLanes) {
        Vec key[K];
        for (int j = 0; j < K; ++j) key[j] = load(keys[j] + d);
        for (int r = 0; r < R; ++r) {
            const Vec query = load(q + static_cast<size_t>(r) * width + d);
            for (int j = 0; j < K; ++j) sum[r * K + j] = fma(query, key[j], sum[r * K + j]);
        }
    }
    float sums[8];
    sums_of(sum, sums);
    for (int r = 0; r < R; ++r) memcpy(scores + static_cast<size_t>(r) * kScoreStride, sums + r * K, K * sizeof(float));
}

template <int R, int K>
inline void score_rows(const float* q, const float* const* keys, size_t count, size_t width, float* scores) {
    for (size_t key = 0; key < count; key += K) score_block<R, K>(q, keys + key, width, scores + key);
}

// Scores of `rows` rows of queries with `count` keys, a multiple of kKeyBlock.
inline void score(const float* q, size_t rows, const float* const* keys, size_t count, size_t width, float* scores) {
    size_t row = 0;
    const auto next = [&](auto block, size_t size) {
        block(q + row * width, keys, count, width, scores + row * kScoreStride);
        row += size;
    };
    while (rows - row >= 5 || rows - row == 3) next(score_rows<3, 2>, 3);
    while (rows - row >= 2) next(score_rows<2, 3>, 2);
    if (rows > row) next(score_rows<1, 6>, 1);
}

// Adds weights [R, kScoreStride] times values first … last - 1 to sums [R, width], C vectors of the width at a time.
template <int R, int C>
inline void mix_block(const float* weights, const float* const* values, size_t first, size_t last, size_t width, float* sums) {
    for (size_t d = 0; d < width; d += C * kLanes) {
        Vec sum[R][C];
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) sum[r][c] = load(sums + static_cast<size_t>(r) * width + d + c * kLanes);
        for (size_t key = first; key < last; ++key) {
            Vec value[C];
            for (int c = 0; c < C; ++c) value[c] = load(values[key] + d + c * kLanes);
            for (int r = 0; r < R; ++r) {
                const Vec weight = all(weights[static_cast<size_t>(r) * kScoreStride + key]);
                for (int c = 0; c < C; ++c) sum[r][c] = fma(weight, value[c], sum[r][c]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) store(sums + static_cast<size_t>(r) * width + d + c * kLanes, sum[r][c]);
    }
}

// The same for a number of rows up to six; all see the same keys.
inline void mix(size_t rows, const float* weights, const float* const* values, size_t first, size_t last, size_t width, float* sums) {
    if (first >= last) return;
    switch (rows) {
        case 6: return mix_block<6, 1>(weights, values, first, last, width, sums);
        case 5: return mix_block<5, 1>(weights, values, first, last, width, sums);
        case 4: return mix_block<4, 1>(weights, values, first, last, width, sums);
        case 3: return mix_block<3, 1>(weights, values, first, last, width, sums);
        case 2: return width % 32 ? mix_block<2, 1>(weights, values, first, last, width, sums) : mix_block<2, 2>(weights, values, first, last, width, sums);
        default: return width % 64 ? mix_block<1, 1>(weights, values, first, last, width, sums) : mix_block<1, 4>(weights, values, first, last, width, sums);
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
