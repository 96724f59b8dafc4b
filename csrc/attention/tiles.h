// The two products of attention over some keys or values: scores, and sums of weighted values. Keys and values are read as the cache has
// them and widened in registers, or from a tile in fp32, where many rows read them.
//
// A score is sixteen partial sums over the head's width, ascending, then the tree of `sum_of`; a value's sum has one accumulator a number,
// keys ascending. Neither depends on how many rows or keys are computed together. Widths are whole vectors.
#pragma once

#include "attention/parts.h"
#include "simd/panel.h"
#include "simd/simd.h"

// Loops over registers: an array stays in registers only where every index is known.
#define RIDGELINE_UNROLL _Pragma("GCC unroll 16")

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// A register: what is left of a vector's abstraction where it matters how many there are.
#if defined(__AVX512F__)
using Part = __m512;
inline Part load_part(const float* p) { return _mm512_loadu_ps(p); }
inline Part all_part(float x) { return _mm512_set1_ps(x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }
inline void store_part(float* p, Part a) { _mm512_storeu_ps(p, a); }
inline __m256 halves_added(const Part* x) { return _mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1)); }
#elif defined(__AVX2__)
using Part = __m256;
inline Part load_part(const float* p) { return _mm256_loadu_ps(p); }
inline Part all_part(float x) { return _mm256_set1_ps(x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
inline void store_part(float* p, Part a) { _mm256_storeu_ps(p, a); }
inline __m256 halves_added(const Part* x) { return _mm256_add_ps(x[0], x[1]); }
#else
using Part = Vec;
inline Part load_part(const float* p) { return load(p); }
inline Part all_part(float x) { return all(x); }
inline Part fma_part(Part a, Part b, Part c) { return fma(a, b, c); }
inline void store_part(float* p, Part a) { store(p, a); }
#endif

// Into a register: the compiler would rather read from memory at every use, and the ports that load are what binds.
inline Part load_once(const float* p) {
    Part x = load_part(p);
#if defined(__AVX2__)
    __asm__("" : "+v"(x));
#endif
    return x;
}

constexpr size_t kPartLanes = sizeof(Part) / sizeof(float);
constexpr int kParts = static_cast<int>(kLanes / kPartLanes);  // of a vector

// Strips of values that many rows read, and rows that read one together.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr size_t kStripLanes = kPanelColumns, kStripRows = kPanelRows;
#else
constexpr size_t kStripLanes = kLanes, kStripRows = 6;
#endif
constexpr int kStripParts = static_cast<int>(kStripLanes / kPartLanes);

// Numbers at … of a record, without its scale, in a register.
template <int Type>
inline Part numbers(const uint8_t* record, size_t at) {
    if constexpr (Type == kKVF32) return load_once(reinterpret_cast<const float*>(record) + at);
#if defined(__AVX512F__)
    else if constexpr (Type == kKVBF16) return load_bf16(reinterpret_cast<const uint16_t*>(record) + at).v;
    else return load_int8(reinterpret_cast<const int8_t*>(record) + at).v;
#elif defined(__AVX2__)
    else if constexpr (Type == kKVBF16) return widen_bf16(reinterpret_cast<const uint16_t*>(record) + at);
    else return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(record + at))));
#else
    else if constexpr (Type == kKVBF16) return load_bf16(reinterpret_cast<const uint16_t*>(record) + at);
    else return load_int8(reinterpret_cast<const int8_t*>(record) + at);
#endif
}

#if defined(__AVX2__)

inline __m256 quarters_added(const Part* x, const Part* y) {
    const __m256 a = halves_added(x), b = halves_added(y);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

inline __m256 eighths_added(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
}

// Sums of the lanes of eight vectors, each by the tree of `sum_of`: a to d in the lower half, e to h in the upper one.
inline __m256 sums_of(const Part* a, const Part* b, const Part* c, const Part* d, const Part* e, const Part* f, const Part* g, const Part* h) {
    const __m256 x = eighths_added(quarters_added(a, e), quarters_added(b, f)), y = eighths_added(quarters_added(c, g), quarters_added(d, h));
    return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd));
}

// Sums of [R, K] vectors to rows of scores. What stands behind the last key of a row may be overwritten.
template <int R, int K>
inline void put_scores(const Part (*x)[kParts], float* scores) {
    const auto row = [&](int r) { return scores + static_cast<size_t>(r) * kScoreStride; };
    if constexpr (R == 2) {
        const __m256 sums = sums_of(x[0], x[1], x[2], x[2], x[3], x[4], x[5], x[5]);
        _mm_storeu_ps(row(0), _mm256_castps256_ps128(sums));
        _mm_storeu_ps(row(1), _mm256_extractf128_ps(sums, 1));
    } else {
        const __m256 sums = sums_of(x[0], x[1], x[2], x[3], x[4], x[5], x[4], x[5]);
        _mm_storeu_ps(row(0), _mm256_castps256_ps128(sums));
        _mm_storel_pi(reinterpret_cast<__m64*>(row(0) + 4), _mm256_extractf128_ps(sums, 1));
    }
}

#else

template <int R, int K>
inline void put_scores(const Part (*x)[kParts], float* scores) {
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < K; ++j) scores[static_cast<size_t>(r) * kScoreStride + static_cast<size_t>(j)] = sum_of(x[r * K + j][0]);
}

#endif

// Scores of R rows of queries, `width` apart, with `count` keys, K at a time; R * K = 6, which fills sixteen registers.
template <int Type, int R, int K>
inline void score_rows(const float* q, const uint8_t* const* keys, size_t count, size_t width, float* scores) {
    for (size_t first = 0; first < count; first += K) {
        Part sum[6][kParts];
        RIDGELINE_UNROLL
        for (auto& one : sum)
            RIDGELINE_UNROLL
            for (Part& part : one) part = all_part(0.0f);
        const uint8_t* from[K];
        RIDGELINE_UNROLL
        for (int j = 0; j < K; ++j) from[j] = keys[first + static_cast<size_t>(j)];
        size_t d = 0;
        do {                             // at least once: sums then never leave their registers
            RIDGELINE_UNROLL
            for (int p = 0; p < kParts; ++p) {
                const size_t at = d + static_cast<size_t>(p) * kPartLanes;
                Part query[R];
                RIDGELINE_UNROLL
                for (int r = 0; r < R; ++r) query[r] = load_once(q + static_cast<size_t>(r) * width + at);
                RIDGELINE_UNROLL
                for (int j = 0; j < K; ++j) {
                    const Part key = numbers<Type>(from[j], at);
                    RIDGELINE_UNROLL
                    for (int r = 0; r < R; ++r) sum[r * K + j][p] = fma_part(query[r], key, sum[r * K + j][p]);
                }
            }
        } while ((d += kLanes) < width);
        put_scores<R, K>(sum, scores + first);
    }
}

// The same for four rows: so many sums that the parts of vectors come one after the other. A key is then widened once for all rows.
template <int Type>
inline void score_four_rows(const float* q, const uint8_t* const* keys, size_t count, size_t width, float* scores) {
    constexpr int kKeys = 3, kSums = 4 * kKeys;
    for (size_t first = 0; first < count; first += kKeys) {
        Part sum[kSums][kParts];
        for (int p = 0; p < kParts; ++p) {
            Part one[kSums];
            RIDGELINE_UNROLL
            for (Part& each : one) each = all_part(0.0f);
            size_t at = static_cast<size_t>(p) * kPartLanes;
            do {
                Part key[kKeys];
                RIDGELINE_UNROLL
                for (int j = 0; j < kKeys; ++j) key[j] = numbers<Type>(keys[first + static_cast<size_t>(j)], at);
                RIDGELINE_UNROLL
                for (int r = 0; r < 4; ++r) {
                    const Part query = load_once(q + static_cast<size_t>(r) * width + at);
                    RIDGELINE_UNROLL
                    for (int j = 0; j < kKeys; ++j) one[r * kKeys + j] = fma_part(query, key[j], one[r * kKeys + j]);
                }
            } while ((at += kLanes) < width);
            RIDGELINE_UNROLL
            for (int i = 0; i < kSums; ++i) sum[i][p] = one[i];
        }
        put_scores<2, kKeys>(sum, scores + first);
        put_scores<2, kKeys>(sum + 2 * kKeys, scores + 2 * kScoreStride + first);
    }
}

// Scores of `rows` rows of queries with `count` keys, a multiple of kKeyBlock.
template <int Type>
inline void score(const float* q, size_t rows, const uint8_t* const* keys, size_t count, size_t width, float* scores) {
    size_t row = 0;
    const auto next = [&](auto block, size_t size) {
        block(q + row * width, keys, count, width, scores + row * kScoreStride);
        row += size;
    };
    while (rows - row >= 4) next(score_four_rows<Type>, 4);
    if (rows - row >= 2) next(score_rows<Type, 2, 3>, 2);
    if (rows > row) next(score_rows<Type, 1, 6>, 1);
}

// Adds weights [R, kScoreStride] times values first … last - 1 (one or more), each from `offset` on, to sums, rows `width` apart: C registers.
template <int Type, int R, int C>
inline void mix_block(const float* weights, const uint8_t* const* values, size_t first, size_t last, size_t offset, size_t width, float* sums) {
    Part sum[R][C];
    RIDGELINE_UNROLL
    for (int r = 0; r < R; ++r)
        RIDGELINE_UNROLL
        for (int c = 0; c < C; ++c) sum[r][c] = load_part(sums + static_cast<size_t>(r) * width + static_cast<size_t>(c) * kPartLanes);
    size_t key = first;
    do {
        const uint8_t* value = values[key];
        const auto weight = [&](int r) { return all_part(weights[static_cast<size_t>(r) * kScoreStride + key]); };
        const auto part = [&](int c) { return numbers<Type>(value, offset + static_cast<size_t>(c) * kPartLanes); };
        // What there is less of stays in registers.
        if constexpr (R > C) {
            Part held[C];
            RIDGELINE_UNROLL
            for (int c = 0; c < C; ++c) held[c] = part(c);
            RIDGELINE_UNROLL
            for (int r = 0; r < R; ++r) {
                const Part one = weight(r);
                RIDGELINE_UNROLL
                for (int c = 0; c < C; ++c) sum[r][c] = fma_part(one, held[c], sum[r][c]);
            }
        } else {
            Part held[R];
            RIDGELINE_UNROLL
            for (int r = 0; r < R; ++r) held[r] = weight(r);
            RIDGELINE_UNROLL
            for (int c = 0; c < C; ++c) {
                const Part one = part(c);
                RIDGELINE_UNROLL
                for (int r = 0; r < R; ++r) sum[r][c] = fma_part(held[r], one, sum[r][c]);
            }
        }
    } while (++key < last);
    RIDGELINE_UNROLL
    for (int r = 0; r < R; ++r)
        RIDGELINE_UNROLL
        for (int c = 0; c < C; ++c) store_part(sums + static_cast<size_t>(r) * width + static_cast<size_t>(c) * kPartLanes, sum[r][c]);
}

// The same over `size` floats of the width, C registers at a time where that goes.
template <int Type, int R, int C>
inline void mix_rows(const float* weights, const uint8_t* const* values, size_t first, size_t last, size_t offset, size_t size, size_t width,
                     float* sums) {
    if (C == kParts || size % (C * kPartLanes) == 0)
        for (size_t d = 0; d < size; d += C * kPartLanes) mix_block<Type, R, C>(weights, values, first, last, offset + d, width, sums + d);
    else
        for (size_t d = 0; d < size; d += kLanes) mix_block<Type, R, kParts>(weights, values, first, last, offset + d, width, sums + d);
}

// The same for a number of rows up to kMixRows; all see the same keys.
constexpr size_t kMixRows = 6;

template <int Type>
inline void mix(size_t rows, const float* weights, const uint8_t* const* values, size_t first, size_t last, size_t offset, size_t size, size_t width,
                float* sums) {
    if (first >= last) return;
    switch (rows) {
        case 6: return mix_rows<Type, 6, kParts>(weights, values, first, last, offset, size, width, sums);
        case 5: return mix_rows<Type, 5, kParts>(weights, values, first, last, offset, size, width, sums);
        case 4: return mix_rows<Type, 4, kParts>(weights, values, first, last, offset, size, width, sums);
        case 3: return mix_rows<Type, 3, 4>(weights, values, first, last, offset, size, width, sums);
        case 2: return mix_rows<Type, 2, 4>(weights, values, first, last, offset, size, width, sums);
        default: return size == kStripLanes ? mix_rows<Type, 1, kStripParts>(weights, values, first, last, offset, size, width, sums)
                                            : mix_rows<Type, 1, 8>(weights, values, first, last, offset, size, width, sums);
    }
}

// The same for a strip of kStripLanes of a tile in fp32, where keys lie one behind the other.
inline void mix_strip(size_t rows, const float* weights, const uint8_t* const* values, size_t first, size_t last, size_t offset, size_t width, float* sums) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (rows == kPanelRows && first < last) {
        const size_t turns = (last - first) / kPanelSteps;
        const float* panel = reinterpret_cast<const float*>(values[first]) + offset;
        if (turns > 0) panel_turns(panel, nullptr, 0, weights + first, kScoreStride, turns, sums, width);
        first += turns * kPanelSteps;
    }
#endif
    mix<kKVF32>(rows, weights, values, first, last, offset, kStripLanes, width, sums);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
