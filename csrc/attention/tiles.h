// The two products of attention over some keys or values: scores, and sums of weighted values. Keys and values are read as the cache has
// them and widened in registers, or from a tile in fp32, where many rows read them.
//
// A score is sixteen partial sums over the head's width, ascending, then the tree of `sum_of`; a value's sum has one accumulator a number,
// keys ascending. Neither depends on how many rows or keys are computed together. Widths are whole vectors.
#pragma once

#include <type_traits>

#include "attention/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kPartLanes = sizeof(Part) / sizeof(float);
constexpr int kParts = static_cast<int>(kLanes / kPartLanes);  // of a vector

// Strips of values that many rows read, and rows that read one together.
constexpr size_t kStripLanes = kPanelColumns, kStripRows = kPanelRows;
constexpr int kStripParts = static_cast<int>(kStripLanes / kPartLanes);

// Registers of sums of R rows that are mixed together: of values anywhere; of a strip. Long vectors need more than one to keep units busy.
template <int R>
constexpr int kMixParts = kParts == 1 || (R > 1 && R <= 3) ? 4 : R > 3 ? kParts : 8;
template <int R>
constexpr int kMixStripParts = kParts == 1 || R <= 3 ? kStripParts : kParts;
// Of values that few rows read where they lie, at a time.
constexpr size_t kDirectLanes = kParts == 1 ? 4 * kLanes : kLanes;

// Numbers at … of a record, without its scale, in a register.
template <int Type>
inline Part numbers(const uint8_t* record, size_t at) {
    if constexpr (Type == kKVF32) return load_once(reinterpret_cast<const float*>(record) + at);
    else if constexpr (Type == kKVBF16) return load_part_bf16(reinterpret_cast<const uint16_t*>(record) + at);
    else return load_part_int8(reinterpret_cast<const int8_t*>(record) + at);
}

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
        store_sums<R, K>(sum, scores + first, kScoreStride);
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
        store_sums<2, kKeys>(sum, scores + first, kScoreStride);
        store_sums<2, kKeys>(sum + 2 * kKeys, scores + 2 * kScoreStride + first, kScoreStride);
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
    const auto of = [&](auto count) {
        constexpr int R = count;
        if (size == kStripLanes) mix_rows<Type, R, kMixStripParts<R>>(weights, values, first, last, offset, size, width, sums);
        else mix_rows<Type, R, kMixParts<R>>(weights, values, first, last, offset, size, width, sums);
    };
    switch (rows) {
        case 6: return of(std::integral_constant<int, 6>());
        case 5: return of(std::integral_constant<int, 5>());
        case 4: return of(std::integral_constant<int, 4>());
        case 3: return of(std::integral_constant<int, 3>());
        case 2: return of(std::integral_constant<int, 2>());
        default: return of(std::integral_constant<int, 1>());
    }
}

// The same for a strip of kStripLanes of a tile in fp32, where keys lie one behind the other.
inline void mix_strip(size_t rows, const float* weights, const uint8_t* const* values, size_t first, size_t last, size_t offset, size_t width, float* sums) {
    if (rows == kPanelRows && first < last) {
        const float* panel = reinterpret_cast<const float*>(values[first]) + offset;
        first += panel_turns(panel, nullptr, 0, weights + first, kScoreStride, last - first, sums, width);
    }
    mix<kKVF32>(rows, weights, values, first, last, offset, kStripLanes, width, sums);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
