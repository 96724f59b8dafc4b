// The vocabulary of simd/simd.h in NEON with dot products of bytes (Armv8.2): a vector is four of 32 registers.
#pragma once

#include <arm_neon.h>
#include <math.h>

#include "simd/common.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Loops over registers are unrolled, loops over arrays are not.
#define RIDGELINE_UNROLL _Pragma("GCC unroll 16")

// Sums of four tokens take 16 registers, and all that they meet finds room beside them. Nothing is written down for more tokens: to take codes apart
// again is half as many instructions as the products with four.
constexpr int kRecordTokens = 4;         // tokens that share the reading of a packed record straight from memory
constexpr int kSpanRecordTokens = kRecordTokens;
constexpr int kReadStreams = 2;           // as simd/avx512.h has it
constexpr size_t kInFlight = 2048;
constexpr int kFetchLevel = 2;
constexpr int streams_of(size_t m, bool) { return m == 1 ? kReadStreams : 1; }    // as simd/avx512.h has it
template <int M> constexpr int kBlocksAtOnce = kReadStreams;
constexpr bool kTiles = false;
constexpr bool kTiledSums = false;
constexpr size_t kFloatTokens = 6, kFloatPairTokens = 2;  // of a tile of float weights with one block, with two
constexpr bool kFloatSteps = false;

#define RIDGELINE_GROUP_TILES "linear/linear.h"
#define RIDGELINE_SPAN_TILES "linear/linear.h"
#define RIDGELINE_FLOAT_STEPS "linear/linear.h"

// Panels in fp32, which rows of x meet kPanelRows at a time, kPanelColumns of it. The compiler's code is as quick here: no input is taken.
constexpr size_t kPanelRows = 6, kPanelColumns = kLanes;
inline size_t panel_turns(const float*, const uint8_t*, size_t, const float*, size_t, size_t, float*, size_t) { return 0; }

constexpr int kQuarters = 4;             // registers of sixteen words
template <class T, class F>
__attribute__((always_inline)) inline T each_quarter(const F& f) { return {{f(0), f(1), f(2), f(3)}}; }
#define RIDGELINE_EACH(Type, expression) return each_quarter<Type>([&](int i) { return (expression); })

struct Vec { float32x4_t v[kQuarters]; };
inline Vec all(float x) { const float32x4_t v = vdupq_n_f32(x); return {{v, v, v, v}}; }
inline Vec zero() { return all(0.0f); }
inline Vec load(const float* p) { RIDGELINE_EACH(Vec, vld1q_f32(p + 4 * i)); }
inline void store(float* p, Vec x) {
    RIDGELINE_UNROLL
    for (int i = 0; i < kQuarters; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline Vec operator+(Vec x, Vec y) { RIDGELINE_EACH(Vec, vaddq_f32(x.v[i], y.v[i])); }
inline Vec operator-(Vec x, Vec y) { RIDGELINE_EACH(Vec, vsubq_f32(x.v[i], y.v[i])); }
inline Vec operator*(Vec x, Vec y) { RIDGELINE_EACH(Vec, vmulq_f32(x.v[i], y.v[i])); }
inline Vec operator/(Vec x, Vec y) { RIDGELINE_EACH(Vec, vdivq_f32(x.v[i], y.v[i])); }
inline Vec fma(Vec x, Vec y, Vec z) { RIDGELINE_EACH(Vec, vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
// The second where either is NaN, and of zeros: the instructions for this have rules of their own.
inline float32x4_t larger_of(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline Vec larger(Vec x, Vec y) { RIDGELINE_EACH(Vec, larger_of(x.v[i], y.v[i])); }
inline Vec smaller(Vec x, Vec y) { RIDGELINE_EACH(Vec, vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i])); }
inline Vec magnitude(Vec x) { RIDGELINE_EACH(Vec, vabsq_f32(x.v[i])); }
inline Vec nearest(Vec x) { RIDGELINE_EACH(Vec, vrndnq_f32(x.v[i])); }
inline Vec power_of_two(Vec n) {
    RIDGELINE_EACH(Vec, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23)));
}
inline Vec where_nan(Vec t, Vec yes, Vec no) { RIDGELINE_EACH(Vec, vbslq_f32(vceqq_f32(t.v[i], t.v[i]), no.v[i], yes.v[i])); }
inline Vec where_below(Vec x, Vec y, Vec yes, Vec no) { RIDGELINE_EACH(Vec, vbslq_f32(vcltq_f32(x.v[i], y.v[i]), yes.v[i], no.v[i])); }
inline Vec where_bits(uint32_t bits, Vec yes, Vec no) {
    const uint32_t first[4] = {1, 2, 4, 8};
    const uint32x4_t one = vld1q_u32(first);
    RIDGELINE_EACH(Vec, vbslq_f32(vtstq_u32(vdupq_n_u32(bits >> 4 * i), one), yes.v[i], no.v[i]));
}

// Part: one register of a vector, where it matters how many there are.
using Part = float32x4_t;
inline Part load_part(const float* p) { return vld1q_f32(p); }
inline Part all_part(float x) { return vdupq_n_f32(x); }
inline Part fma_part(Part a, Part b, Part c) { return vfmaq_f32(c, a, b); }
inline void store_part(float* p, Part a) { vst1q_f32(p, a); }
inline Part load_once(const float* p) { return load_part(p); }
inline Part load_part_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline Part load_part_int8(const int8_t* p) {
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(word(p)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

inline Vec load_bf16(const uint16_t* p) { RIDGELINE_EACH(Vec, load_part_bf16(p + 4 * i)); }
inline Vec load_half(const void* p) {
    const uint16_t* halves = static_cast<const uint16_t*>(p);
    RIDGELINE_EACH(Vec, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + 4 * i))));
}

struct Quad { uint8x16_t v[kQuarters]; };
struct Ints { int32x4_t v[kQuarters]; };
using Pairs = Ints;
template <int kBits> constexpr size_t kRun = kGroupQuads;
template <int kBits> constexpr bool kSigned = kBits == 8;            // fewer bits are signed bytes already

inline Quad load_quad(const uint8_t* p) { RIDGELINE_EACH(Quad, vld1q_u8(p + 16 * i)); }
inline void store_quad(uint8_t* p, Quad w) {
    RIDGELINE_UNROLL
    for (int i = 0; i < kQuarters; ++i) vst1q_u8(p + 16 * i, w.v[i]);
}
inline Quad or_(Quad x, Quad y) { RIDGELINE_EACH(Quad, vorrq_u8(x.v[i], y.v[i])); }
inline Quad shift_right(Quad w, unsigned bits, char mask) {
    const uint8x16_t by = vdupq_n_u8(static_cast<uint8_t>(bits)), m = vdupq_n_u8(static_cast<uint8_t>(mask));
    RIDGELINE_EACH(Quad, w.v[i] >> by & m);
}
inline Quad shift_left(Quad w, unsigned bits, char mask) {
    const uint8x16_t by = vdupq_n_u8(static_cast<uint8_t>(bits)), m = vdupq_n_u8(static_cast<uint8_t>(mask));
    RIDGELINE_EACH(Quad, w.v[i] << by & m);
}
inline Quad look_up(Quad w, const uint8_t* table) {      // table [16]
    const uint8x16_t t = vld1q_u8(table);
    RIDGELINE_EACH(Quad, vqtbl1q_u8(t, w.v[i]));
}
inline Ints ints(int32_t x) { const int32x4_t v = vdupq_n_s32(x); return {{v, v, v, v}}; }
inline Ints operator+(Ints x, Ints y) { RIDGELINE_EACH(Ints, vaddq_s32(x.v[i], y.v[i])); }
inline Ints operator-(Ints x, Ints y) { RIDGELINE_EACH(Ints, vsubq_s32(x.v[i], y.v[i])); }
inline Ints operator*(Ints x, Ints y) { RIDGELINE_EACH(Ints, vmulq_s32(x.v[i], y.v[i])); }
inline Ints lifted(Ints x, uint32_t bits) {              // to the left
    const int32x4_t by = vdupq_n_s32(static_cast<int32_t>(bits));
    RIDGELINE_EACH(Ints, vshlq_s32(x.v[i], by));
}
inline Vec floats(Ints x) { RIDGELINE_EACH(Vec, vcvtq_f32_s32(x.v[i])); }
inline Pairs no_pairs() { return ints(0); }
template <int kBits> inline Ints widen(Pairs x) { return x; }
template <int kBits> inline int8x16_t signed_codes(uint8x16_t w) {
    return vreinterpretq_s8_u8(kSigned<kBits> ? veorq_u8(w, vdupq_n_u8(0x80)) : w);
}
// Hides from the compiler how a sum came about: it would finish one after the other, and lack the registers for all that they read.
inline int32x4_t kept(int32x4_t sum) {
    __asm__("" : "+w"(sum));
    return sum;
}
template <int kBits> inline Pairs products(Pairs sum, Quad w, const int8_t* x) {
    const int8x16_t inputs = vreinterpretq_s8_u32(vdupq_n_u32(word(x)));
    RIDGELINE_EACH(Pairs, kept(vdotq_s32(sum.v[i], signed_codes<kBits>(w.v[i]), inputs)));
}

// Sixteen bytes, each in 32 bits.
inline Ints each_of(int8x16_t b) {
    const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(b)), vmovl_s8(vget_high_s8(b))};
    RIDGELINE_EACH(Ints, vmovl_s16(i % 2 ? vget_high_s16(halves[i / 2]) : vget_low_s16(halves[i / 2])));
}
inline Ints each_of(uint8x16_t b) {
    const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(b)), vmovl_u8(vget_high_u8(b))};
    RIDGELINE_EACH(Ints, vreinterpretq_s32_u32(vmovl_u16(i % 2 ? vget_high_u16(halves[i / 2]) : vget_low_u16(halves[i / 2]))));
}
inline Vec load_int8(const int8_t* p) { return floats(each_of(vld1q_s8(p))); }
// Whole numbers of -127 … 127 to the nearest, ties to even; returns their sum.
inline int32_t store_int8(int8_t* p, Vec x) {
    const auto halved = [&](int i) { return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x.v[i])), vmovn_s32(vcvtnq_s32_f32(x.v[i + 1]))); };
    const int8x16_t bytes = vcombine_s8(vmovn_s16(halved(0)), vmovn_s16(halved(2)));
    vst1q_s8(p, bytes);
    return vaddlvq_s8(bytes);
}
// 2^(code - 128) of 16 bytes; the two least are below the normal numbers.
inline Vec load_e8m0_halved(const uint8_t* p) {
    const Ints n = each_of(vld1q_u8(p)), normal = lifted(n - ints(1), 23), tiny = lifted(n + ints(1), 21);
    RIDGELINE_EACH(Vec, vreinterpretq_f32_s32(vmaxq_s32(normal.v[i], tiny.v[i])));
}
// 2^-120 of 16 numbers of e4m3: exponents keep their bits, and NaN is 480. Twice 16 numbers of e2m1, four bits from `shift` on. Compilers make
// vectors of these loops.
inline Vec load_e4m3(const uint8_t* p) {
    float part[kLanes];
    for (size_t i = 0; i < kLanes; ++i) set_word(part + i, (p[i] & 0x80u) << 24 | (p[i] & 0x7fu) << 20);
    return load(part);
}
inline Vec load_e2m1_doubled(const uint8_t* p, size_t shift) {
    constexpr float kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float part[kLanes];
    for (size_t i = 0; i < kLanes; ++i) part[i] = kDoubled[p[i] >> shift & 15];
    return load(part);
}

// The lanes in four, two and one: each with what stands half of them away.
inline float sum_of(Vec x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest_of(Vec x) {
    const float32x4_t four = larger_of(larger_of(x.v[0], x.v[2]), larger_of(x.v[1], x.v[3]));
    const float32x4_t two = larger_of(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger_of(two, vextq_f32(two, two, 1)), 0);
}
// Sums of [R, K] vectors, each by the tree of `sum_of`, to rows of scores, `stride` apart.
template <int R, int K>
inline void store_sums(const Part (*x)[kQuarters], float* scores, size_t stride) {
    RIDGELINE_UNROLL
    for (int r = 0; r < R; ++r)
        RIDGELINE_UNROLL
        for (int j = 0; j < K; ++j) {
            const Part* sum = x[r * K + j];
            scores[static_cast<size_t>(r) * stride + static_cast<size_t>(j)] = sum_of(Vec{{sum[0], sum[1], sum[2], sum[3]}});
        }
}

// a * b + c, rounded once where the level has such an instruction.
inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Weights of bf16 in the order that is quickest to widen, the order of rows again, and the former from the latter.
inline Vec load_bf16_shuffled(const uint8_t* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
inline Vec unshuffled_bf16(Vec x) { return x; }
inline Vec shuffled_bf16(Vec x) { return x; }

// Makes a value look changed.
#define RIDGELINE_TOUCH(Type) inline void touch(Type& x) { asm volatile("" : "+w"(x.v[0]), "+w"(x.v[1]), "+w"(x.v[2]), "+w"(x.v[3])); }
RIDGELINE_TOUCH(Vec)
RIDGELINE_TOUCH(Quad)
RIDGELINE_TOUCH(Ints)
#undef RIDGELINE_TOUCH

// Factors: one integer of each of 16 rows, for sums of products that are widened.
using Factors = Ints;
template <Field kField>
inline Factors factors(const uint8_t* p) {
    const uint8x16_t b = vld1q_u8(p);
    if (kField == Field::kSigned) return each_of(vreinterpretq_s8_u8(b));
    return each_of(kField == Field::kHigh ? vshrq_n_u8(b, 4) : kField == Field::kLow ? vandq_u8(b, vdupq_n_u8(15)) : b);
}

// Words of 64 bits, of which `product` multiplies the lower halves.
typedef uint64_t Lanes __attribute__((vector_size(16)));
inline Lanes product(Lanes a, Lanes b) { return (Lanes)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b)); }
const Lanes kCount = {0, 1};

constexpr size_t kSums = 5, kIntSums = 5;  // of a roofline, of floats and of integers: as many as keep every unit busy
// What the roofline measures: sums of products of 8-bit activations with codes of at most `kBits` bits, `kDots` of each 8 bits a call.
template <int kBits>
constexpr size_t kDots = 1;
template <int kBits>
inline Ints dots(Ints sum, Quad codes, Quad& x) {
    RIDGELINE_EACH(Ints, vdotq_s32(sum.v[i], vreinterpretq_s8_u8(codes.v[i]), vreinterpretq_s8_u8(x.v[i])));
}

#undef RIDGELINE_EACH

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#include "simd/untiled.h"
#include "simd/wide_factors.h"
