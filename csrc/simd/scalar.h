// The vocabulary of simd/simd.h in plain C++: a vector is an array. It defines what the other levels do, and runs everywhere.
#pragma once

#include <math.h>

#include "simd/common.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Loops over arrays stay loops.
#define RIDGELINE_UNROLL

constexpr int kRecordTokens = 1;         // tokens that share the reading of a packed record straight from memory
constexpr int kSpanRecordTokens = kRecordTokens;
constexpr int kReadStreams = 2;           // of packed records, for one token: blocks in turn; bytes of all that are on their way, and the cache they come to
constexpr size_t kInFlight = 2048;
constexpr int kFetchLevel = 2;           // 3: the first, 2: the second
constexpr int streams_of(size_t m, bool) { return m == 1 ? kReadStreams : 1; }    // as simd/avx512.h has it
template <int M> constexpr int kBlocksAtOnce = kReadStreams;
constexpr bool kTiles = false;           // more of them meet what was expanded once for all, by these files
constexpr bool kTiledSums = false;       // which give sums to others too
constexpr size_t kFloatTokens = 1, kFloatPairTokens = 1;  // of a tile of float weights with one block, with two
constexpr bool kFloatSteps = false;

#define RIDGELINE_GROUP_TILES "linear/linear.h"
#define RIDGELINE_SPAN_TILES "linear/linear.h"
#define RIDGELINE_FLOAT_STEPS "linear/linear.h"

// Panels in fp32, which rows of x meet kPanelRows at a time, kPanelColumns of it. The compiler's code is as quick here: no input is taken.
constexpr size_t kPanelRows = 6, kPanelColumns = kLanes;
inline size_t panel_turns(const float*, const uint8_t*, size_t, const float*, size_t, size_t, float*, size_t) { return 0; }

struct Vec { float v[kLanes]; };
#define RIDGELINE_EACH(type, count, expression) type r; for (size_t i = 0; i < (count); ++i) r.v[i] = (expression); return r
inline float float_of_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
inline float float_of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
        const float value = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -value : value;
    }
    return float_of_bits(sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13));
}
inline Vec zero() { RIDGELINE_EACH(Vec, kLanes, 0.0f); }
inline Vec all(float x) { RIDGELINE_EACH(Vec, kLanes, x); }
inline Vec load(const float* p) { RIDGELINE_EACH(Vec, kLanes, p[i]); }
inline void store(float* p, Vec a) { memcpy(p, a.v, sizeof a.v); }
inline Vec operator+(Vec a, Vec b) { RIDGELINE_EACH(Vec, kLanes, a.v[i] + b.v[i]); }
inline Vec operator-(Vec a, Vec b) { RIDGELINE_EACH(Vec, kLanes, a.v[i] - b.v[i]); }
inline Vec operator*(Vec a, Vec b) { RIDGELINE_EACH(Vec, kLanes, a.v[i] * b.v[i]); }
inline Vec operator/(Vec a, Vec b) { RIDGELINE_EACH(Vec, kLanes, a.v[i] / b.v[i]); }
inline Vec fma(Vec a, Vec b, Vec c) { RIDGELINE_EACH(Vec, kLanes, fmaf(a.v[i], b.v[i], c.v[i])); }
inline Vec larger(Vec a, Vec b) { RIDGELINE_EACH(Vec, kLanes, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline Vec smaller(Vec a, Vec b) { RIDGELINE_EACH(Vec, kLanes, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline Vec magnitude(Vec a) { RIDGELINE_EACH(Vec, kLanes, fabsf(a.v[i])); }
inline Vec nearest(Vec a) { RIDGELINE_EACH(Vec, kLanes, nearbyintf(a.v[i])); }
inline Vec power_of_two(Vec n) { RIDGELINE_EACH(Vec, kLanes, float_of_bits(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23)); }
inline Vec where_nan(Vec t, Vec yes, Vec no) { RIDGELINE_EACH(Vec, kLanes, t.v[i] != t.v[i] ? yes.v[i] : no.v[i]); }
inline Vec where_below(Vec a, Vec b, Vec yes, Vec no) { RIDGELINE_EACH(Vec, kLanes, a.v[i] < b.v[i] ? yes.v[i] : no.v[i]); }
inline Vec where_bits(uint32_t bits, Vec yes, Vec no) { RIDGELINE_EACH(Vec, kLanes, bits >> i & 1 ? yes.v[i] : no.v[i]); }
inline Vec load_bf16(const uint16_t* p) { RIDGELINE_EACH(Vec, kLanes, float_of_bits(static_cast<uint32_t>(p[i]) << 16)); }
inline Vec load_half(const void* p) {
    uint16_t h[kLanes];
    memcpy(h, p, sizeof h);
    RIDGELINE_EACH(Vec, kLanes, float_of_half(h[i]));
}
inline int32_t store_int8(int8_t* p, Vec x) {
    int32_t total = 0;
    for (size_t i = 0; i < kLanes; ++i) total += p[i] = static_cast<int8_t>(nearbyintf(x.v[i]));
    return total;
}
inline Vec load_int8(const int8_t* p) { RIDGELINE_EACH(Vec, kLanes, static_cast<float>(p[i])); }
// 2^(code - 128) of 16 bytes; the two least are below the normal numbers.
inline float e8m0_halved(uint8_t code) {
    const uint32_t bits = code < 2 ? 0x00200000u << code : (code - 1u) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline Vec load_e8m0_halved(const uint8_t* p) { RIDGELINE_EACH(Vec, kLanes, e8m0_halved(p[i])); }
// 2^-120 of 16 numbers of e4m3: exponents keep their bits, and NaN is 480. Twice 16 numbers of e2m1, four bits from `shift` on.
inline Vec load_e4m3(const uint8_t* p) { RIDGELINE_EACH(Vec, kLanes, float_of_bits((p[i] & 0x80u) << 24 | (p[i] & 0x7fu) << 20)); }
inline Vec load_e2m1_doubled(const uint8_t* p, size_t shift) {
    constexpr float kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    RIDGELINE_EACH(Vec, kLanes, kDoubled[p[i] >> shift & 15]);
}
inline void touch(Vec& x) { asm volatile("" : "+m"(x)); }
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

// a * b + c, rounded once where the level has such an instruction.
inline double multiply_add(double a, double b, double c) { return a * b + c; }
inline float multiply_add(float a, float b, float c) { return a * b + c; }

// Part: one register of a vector, where it matters how many there are.
using Part = Vec;
inline Part load_part(const float* p) { return load(p); }
inline Part all_part(float x) { return all(x); }
inline Part fma_part(Part a, Part b, Part c) { return fma(a, b, c); }
inline void store_part(float* p, Part a) { store(p, a); }
inline Part load_once(const float* p) { return load(p); }
inline Part load_part_bf16(const uint16_t* p) { return load_bf16(p); }
inline Part load_part_int8(const int8_t* p) { return load_int8(p); }

// Sums of [R, K] vectors, each by the tree of `sum_of`, to rows of scores, `stride` apart.
template <int R, int K>
inline void store_sums(const Part (*x)[1], float* scores, size_t stride) {
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < K; ++j) scores[static_cast<size_t>(r) * stride + static_cast<size_t>(j)] = sum_of(x[r * K + j][0]);
}

// Weights of bf16 in the order that is quickest to widen, the order of rows again, and the former from the latter.
inline Vec load_bf16_shuffled(const uint8_t* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
inline Vec unshuffled_bf16(Vec x) { return x; }
inline Vec shuffled_bf16(Vec x) { return x; }

struct Quad { uint8_t v[kQuadBytes]; };
struct Ints { int32_t v[kLanes]; };
using Pairs = Ints;
template <int kBits> constexpr size_t kRun = kGroupQuads;
template <int kBits> constexpr bool kSigned = false;
inline Quad load_quad(const uint8_t* p) { Quad w; memcpy(w.v, p, sizeof w.v); return w; }
inline void store_quad(uint8_t* p, Quad w) { memcpy(p, w.v, sizeof w.v); }
inline Quad or_(Quad x, Quad y) { RIDGELINE_EACH(Quad, kQuadBytes, static_cast<uint8_t>(x.v[i] | y.v[i])); }
inline Quad shift_right(Quad w, unsigned bits, char mask) { RIDGELINE_EACH(Quad, kQuadBytes, static_cast<uint8_t>((w.v[i] >> bits) & mask)); }
inline Quad shift_left(Quad w, unsigned bits, char mask) { RIDGELINE_EACH(Quad, kQuadBytes, static_cast<uint8_t>((w.v[i] << bits) & mask)); }
inline Quad look_up(Quad w, const uint8_t* table) { RIDGELINE_EACH(Quad, kQuadBytes, table[w.v[i]]); }
inline Ints ints(int32_t x) { RIDGELINE_EACH(Ints, kLanes, x); }
inline Ints operator+(Ints x, Ints y) { RIDGELINE_EACH(Ints, kLanes, x.v[i] + y.v[i]); }
inline Vec floats(Ints x) { RIDGELINE_EACH(Vec, kLanes, static_cast<float>(x.v[i])); }
inline Pairs no_pairs() { return ints(0); }
template <int kBits> inline Ints widen(Pairs x) { return x; }
template <int kBits> inline Pairs products(Pairs sum, Quad w, const int8_t* x) {
    RIDGELINE_EACH(Pairs, kLanes, sum.v[i] + w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] + w.v[4 * i + 3] * x[3]);
}
inline Ints operator-(Ints x, Ints y) { RIDGELINE_EACH(Ints, kLanes, x.v[i] - y.v[i]); }
inline Ints operator*(Ints x, Ints y) { RIDGELINE_EACH(Ints, kLanes, x.v[i] * y.v[i]); }
inline Ints lifted(Ints x, uint32_t bits) { RIDGELINE_EACH(Ints, kLanes, x.v[i] * (1 << bits)); }       // to the left
inline void touch(Quad& x) { asm volatile("" : "+m"(x)); }
inline void touch(Ints& x) { asm volatile("" : "+m"(x)); }

// Factors: one integer of each of 16 rows, for sums of products that are widened.
using Factors = Ints;
template <Field kField>
inline Factors factors(const uint8_t* p) {
    Factors r;
    for (size_t i = 0; i < kLanes; ++i)
        r.v[i] = kField == Field::kSigned ? static_cast<int8_t>(p[i]) : kField == Field::kHigh ? p[i] >> 4 : kField == Field::kLow ? p[i] & 15 : p[i];
    return r;
}

// Words of 64 bits, of which `product` multiplies the lower halves.
typedef uint64_t Lanes;
inline Lanes product(Lanes a, Lanes b) { return (a & UINT32_MAX) * (b & UINT32_MAX); }
const Lanes kCount = 0;

constexpr size_t kSums = 12, kIntSums = 12;  // of a roofline, of floats and of integers: as many as keep every unit busy
// What the roofline measures: sums of products of 8-bit activations with codes of at most `kBits` bits, `kDots` of each 8 bits a call.
template <int kBits>
constexpr size_t kDots = 1;
template <int kBits>
inline Ints dots(Ints sum, Quad codes, Quad& x) {
    for (size_t i = 0; i < kQuadBytes; ++i) sum.v[i % kLanes] += codes.v[i] * static_cast<int8_t>(x.v[i]);
    return sum;
}

#undef RIDGELINE_EACH

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#include "simd/untiled.h"
#include "simd/wide_factors.h"
