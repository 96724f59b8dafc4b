// Integers of spans at every ISA level. A span is as many inputs as share one activation scale: all of it is added up in integers.
//
// A format of spans says, beside what groups32.h describes: kScaleField (and kMinimumField), how a record holds integer scales of its
// parts; `scale` and `minimum`, what the integers of a span are multiplied by, from its head. Where kZerosOfRows, `zeros` are 16 integers that
// are taken off the codes of a span.
//
// I = sum over parts of scale * sum of (code - zero) x, J = sum over parts of minimum * sum of x, in 32 bits, in any order. Then, xs being the
// activations' scale: acc = fma(float(I), fp32(scale * xs), acc) and, of minima, acc = fma(float(J), -fp32(minimum * xs), acc).
#pragma once

#include "linear/direct.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// How a byte of a record holds an integer: whole, with a sign, or as one of its halves.
enum class Field { kNone, kByte, kSigned, kLow, kHigh };

template <class F>
constexpr size_t kSpanGroups = F::kSpan / kCodeGroup;
template <class F>
constexpr size_t kSpanParts = kSpanGroups<F> * F::kParts;
template <class F>
constexpr bool kSpanMinima = F::kMinima && !kZerosOfRows<F>;
template <class F>
constexpr bool kScaled = F::kScaleField != Field::kNone;
template <class F>
constexpr bool kCentredParts = kScaled<F> && F::kZero > 0;

#if defined(__AVX2__)
template <Field kField>
inline __m128i fields(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
    if (kField == Field::kHigh) return _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
    return kField == Field::kLow ? _mm_and_si128(bytes, low) : bytes;
}
#endif

// Factors: one integer of each of 16 rows, for sums of products that are widened. Twins: two of each row, for the sums of two parts' inputs.
#if defined(__AVX2__) && !defined(__AVX512F__)

struct Factors { __m256i a, b; };        // the same 16 bits in both halves of a lane
using Twins = Factors;                   // one integer in the lower half, one in the upper

template <Field kField>
inline Factors factors(const uint8_t* p) {
    constexpr bool kUpper = kField == Field::kSigned;    // first into the upper byte of 16 bits, so that the sign spreads
    const __m256i rows = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
    const __m256i low = _mm256_or_si256(rows, _mm256_set1_epi16(kUpper ? 0x00ff : -0x100)), high = _mm256_or_si256(low, _mm256_set1_epi8(8));
    const __m256i both = _mm256_broadcastsi128_si256(fields<kField>(p));
    const __m256i a = _mm256_shuffle_epi8(both, low), b = _mm256_shuffle_epi8(both, high);
    return kUpper ? Factors{_mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8)} : Factors{a, b};
}
template <Field kField>
inline Twins twins(const uint8_t* first, const uint8_t* second) {
    const __m128i x = fields<kField>(first), y = fields<kField>(second), a = _mm_unpacklo_epi8(x, y), b = _mm_unpackhi_epi8(x, y);
    if (kField == Field::kSigned) return {_mm256_cvtepi8_epi16(a), _mm256_cvtepi8_epi16(b)};
    return {_mm256_cvtepu8_epi16(a), _mm256_cvtepu8_epi16(b)};
}
inline Ints widened(Pairs x, Factors by) { return {_mm256_madd_epi16(x.a, by.a), _mm256_madd_epi16(x.b, by.b)}; }
inline Ints operator-(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline Ints operator*(Ints x, Ints y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline Ints integers(const uint8_t* p) {                 // 16 signed bytes
    const __m128i b = fields<Field::kSigned>(p);
    return {_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
}

// Sums of the inputs of the parts of a span of 256, two parts a word of 16 bits each.
template <class F>
struct Totals {
    uint32_t words[kSpanParts<F> / 2];
    void gather(const int32_t* sums) {   // [16], of 16 inputs each
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 8));
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        if (F::kParts == 2) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), both);
        const __m256i whole = _mm256_madd_epi16(both, _mm256_set1_epi16(1));
        const __m128i eight = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words), eight);
    }
    Ints times(Twins by, size_t pair) const {
        const __m256i word = _mm256_set1_epi32(static_cast<int32_t>(words[pair]));
        return {_mm256_madd_epi16(by.a, word), _mm256_madd_epi16(by.b, word)};
    }
};

#else

using Factors = Ints;
struct Twins { Ints first, second; };

#if defined(__AVX512F__)
template <Field kField>
inline Factors factors(const uint8_t* p) {
    const __m128i b = fields<kField>(p);
    return {kField == Field::kSigned ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b)};
}
inline Ints operator-(Ints x, Ints y) { return {_mm512_sub_epi32(x.v, y.v)}; }
inline Ints operator*(Ints x, Ints y) { return {_mm512_mullo_epi32(x.v, y.v)}; }
#else
template <Field kField>
inline Factors factors(const uint8_t* p) {
    Factors r;
    for (size_t i = 0; i < kLanes; ++i)
        r.v[i] = kField == Field::kSigned ? static_cast<int8_t>(p[i]) : kField == Field::kHigh ? p[i] >> 4 : kField == Field::kLow ? p[i] & 15 : p[i];
    return r;
}
inline Ints operator-(Ints x, Ints y) {
    for (size_t i = 0; i < kLanes; ++i) x.v[i] -= y.v[i];
    return x;
}
inline Ints operator*(Ints x, Ints y) {
    for (size_t i = 0; i < kLanes; ++i) x.v[i] *= y.v[i];
    return x;
}
#endif

template <Field kField>
inline Twins twins(const uint8_t* first, const uint8_t* second) { return {factors<kField>(first), factors<kField>(second)}; }
inline Ints widened(Pairs x, Factors by) { return x * by; }
inline Ints integers(const uint8_t* p) { return factors<Field::kSigned>(p); }

template <class F>
struct Totals {
    int32_t each[kSpanParts<F>];
    void gather(const int32_t* sums) {
        for (size_t i = 0; i < kSpanParts<F>; ++i) each[i] = F::kParts == 2 ? sums[i] : sums[2 * i] + sums[2 * i + 1];
    }
    Ints times(Twins by, size_t pair) const { return by.first * ints(each[2 * pair]) + by.second * ints(each[2 * pair + 1]); }
};

#endif

// Integers of two neighbouring parts that belong to sums of inputs: minima, or the scales of what has a centre. Whole minima lie behind scales.
template <class F>
inline Twins twins_of(const uint8_t* record, size_t pair) {
    constexpr size_t kPlace = F::Coding::kBytes + (F::kScaleField == Field::kByte ? F::kParts * kBlockRows : 0);
    const uint8_t* first = record + (F::kParts == 2 ? pair : 2 * pair) * kRecordBytes<F> + kPlace;
    const uint8_t* second = first + (F::kParts == 2 ? kBlockRows : kRecordBytes<F>);
    if constexpr (F::kMinima) return twins<F::kMinimumField>(first, second);
    else return twins<F::kScaleField>(first, second);
}

// Sums of 16 inputs each, of a whole span.
template <class F>
inline int32_t total(const int32_t* sums) {
    int32_t sum = 0;
    for (size_t i = 0; i < F::kSpan / 16; ++i) sum += sums[i];
    return sum;
}

// Onto the accumulator of a token: the integers of a span, and of its minima.
inline Vec add_span(Vec acc, Ints dot, Vec scale, float x_scale) { return fma(floats(dot), scale * all(x_scale), acc); }
inline Vec add_minima(Vec acc, Ints dot, Vec minimum, float x_scale) { return fma(floats(dot), minimum * all(-x_scale), acc); }

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
