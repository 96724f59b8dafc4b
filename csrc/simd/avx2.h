// The vocabulary of simd/simd.h in AVX2 with FMA: a vector is two registers.
#pragma once

#include "simd/panel_avx2.h"
#include "simd/x86.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Loops over registers are unrolled, loops over arrays are not.
#define RIDGELINE_UNROLL _Pragma("GCC unroll 16")

constexpr int kRecordTokens = 4;         // tokens that share the reading of a packed record straight from memory
constexpr int kSpanRecordTokens = 5;     // the same of formats of spans
constexpr int kReadStreams = 2;           // as simd/avx512.h has it
constexpr size_t kInFlight = 2048;
constexpr int kFetchLevel = 2;
constexpr int streams_of(size_t m, bool) { return m == 1 ? kReadStreams : 1; }    // as simd/avx512.h has it
template <int M> constexpr int kBlocksAtOnce = kReadStreams;
constexpr bool kTiles = true;            // more of them meet what was expanded once for all, by these files
constexpr bool kTiledSums = true;
constexpr size_t kFloatTokens = 6, kFloatPairTokens = kPanelRows;  // of a tile of float weights with one block, with two
constexpr bool kFloatSteps = true;

#define RIDGELINE_GROUP_TILES "linear/avx2/groups.h"
#define RIDGELINE_SPAN_TILES "linear/avx2/spans.h"
#define RIDGELINE_FLOAT_STEPS "linear/avx2/floats.h"

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
inline __m256 blend_bits(uint32_t bits, __m256 yes, __m256 no) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits)), each), each);
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(set));
}
inline Vec where_bits(uint32_t bits, Vec yes, Vec no) { return {blend_bits(bits, yes.a, no.a), blend_bits(bits >> 8, yes.b, no.b)}; }
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
// 2^(code - 128) of 16 bytes; the two least are below the normal numbers.
inline __m256 widen_e8m0(__m128i codes) {
    const __m256i n = _mm256_cvtepu8_epi32(codes), normal = _mm256_slli_epi32(_mm256_sub_epi32(n, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(1)), 21)));
}
inline Vec load_e8m0_halved(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {widen_e8m0(codes), widen_e8m0(_mm_srli_si128(codes, 8))};
}
// 2^-120 of 16 numbers of e4m3: exponents keep their bits, and NaN is 480. Twice 16 numbers of e2m1, four bits from `shift` on.
inline __m256 widen_e4m3(__m128i codes) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepi8_epi32(codes), 20);
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int32_t>(0x87f00000u))));
}
inline Vec load_e4m3(const uint8_t* p) {
    return {widen_e4m3(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), widen_e4m3(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Vec load_e2m1_doubled(const uint8_t* p, size_t shift) {
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i c = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(all, static_cast<int>(shift)), _mm_set1_epi8(15)));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(c)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(c, 8)))};
}
inline float sum_of(Vec x) { return sum_of(x.a, x.b); }
inline float largest_of(Vec x) { return largest_of(x.a, x.b); }
inline void touch(Vec& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }

// a * b + c, rounded once where the level has such an instruction.
inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Part: one register of a vector, where it matters how many there are.
using Part = __m256;
inline Part load_part(const float* p) { return _mm256_loadu_ps(p); }
inline Part all_part(float x) { return _mm256_set1_ps(x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
inline void store_part(float* p, Part a) { _mm256_storeu_ps(p, a); }
inline Part load_part_bf16(const uint16_t* p) { return widen_bf16(p); }
inline Part load_part_int8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))); }
// Into a register: the compiler would rather read from memory at every use, and the ports that load are the bottleneck.
inline Part load_once(const float* p) {
    Part x = load_part(p);
    __asm__("" : "+v"(x));
    return x;
}
// Sums of [R, K] vectors, six in all, to rows of scores, `stride` apart. What stands behind the last key of a row may be overwritten.
template <int R, int K>
inline void store_sums(const Part (*x)[2], float* scores, size_t stride) {
    const __m256 halved[6] = {_mm256_add_ps(x[0][0], x[0][1]), _mm256_add_ps(x[1][0], x[1][1]), _mm256_add_ps(x[2][0], x[2][1]), _mm256_add_ps(x[3][0], x[3][1]), _mm256_add_ps(x[4][0], x[4][1]), _mm256_add_ps(x[5][0], x[5][1])};
    store_sums_of<R, K>(halved, scores, stride);
}

// Weights of bf16 in the order that is quickest to widen, the order of rows again, and the former from the latter.
inline Vec load_bf16_shuffled(const uint8_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), odd = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(_mm256_and_si256(pairs, odd))};
}
inline Vec unshuffled_bf16(Vec x) {
    const __m256 low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
inline Vec shuffled_bf16(Vec x) {
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x.a, x.b, 0x88)), odd = _mm256_castps_pd(_mm256_shuffle_ps(x.a, x.b, 0xdd));
    return {_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)), _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8))};
}

struct Quad { __m256i a, b; };
struct Ints { __m256i a, b; };
struct Pairs { __m256i a, b; };          // 32 integers of 16 bits; of 8-bit codes: of 32 bits
// Products that fit into 16 bits: run * 2 * (2^bits - 1) * 127 < 2^15. Two 8-bit products fill them, so those are widened at once.
template <int kBits> constexpr size_t kRun = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : kBits == 7 ? 1 : 8;
template <int kBits> constexpr bool kSigned = kBits == 8;

inline Quad load_quad(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void store_quad(uint8_t* p, Quad w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), w.b);
}
inline Quad or_(Quad x, Quad y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline Quad shift_right(Quad w, unsigned bits, char mask) {
    const __m256i m = _mm256_set1_epi8(mask);
    return {_mm256_and_si256(_mm256_srli_epi16(w.a, static_cast<int>(bits)), m), _mm256_and_si256(_mm256_srli_epi16(w.b, static_cast<int>(bits)), m)};
}
inline Quad shift_left(Quad w, unsigned bits, char mask) {
    const __m256i m = _mm256_set1_epi8(mask);
    return {_mm256_and_si256(_mm256_slli_epi16(w.a, static_cast<int>(bits)), m), _mm256_and_si256(_mm256_slli_epi16(w.b, static_cast<int>(bits)), m)};
}
inline Quad look_up(Quad w, const uint8_t* table) {      // table [16]
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(t, w.a), _mm256_shuffle_epi8(t, w.b)};
}
inline Ints ints(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }
inline Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline Vec floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Pairs no_pairs() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
template <int kBits> inline Ints widen(Pairs x) {
    if (kBits == 8) return {x.a, x.b};
    const __m256i one = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(x.a, one), _mm256_madd_epi16(x.b, one)};
}
// Hides from the compiler how a sum came about: it would add products up in another order, and lack the registers for it.
inline __m256i kept(__m256i sum) {
    asm("" : "+x"(sum));
    return sum;
}
// |w| is the unsigned operand and x takes w's sign.
inline __m256i signed_products(__m256i w, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)), _mm256_set1_epi16(1));
}
template <int kBits> inline Pairs products(Pairs sum, Quad w, const int8_t* x) {
    const __m256i v = _mm256_set1_epi32(static_cast<int32_t>(word(x)));
    if (kBits == 8) {
        const __m256i centre = _mm256_set1_epi8(static_cast<char>(0x80));
        const __m256i a = _mm256_xor_si256(w.a, centre), b = _mm256_xor_si256(w.b, centre);
        return {kept(_mm256_add_epi32(sum.a, signed_products(a, v))), kept(_mm256_add_epi32(sum.b, signed_products(b, v)))};
    }
    return {kept(_mm256_add_epi16(sum.a, _mm256_maddubs_epi16(w.a, v))), kept(_mm256_add_epi16(sum.b, _mm256_maddubs_epi16(w.b, v)))};
}
inline void touch(Quad& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }
inline void touch(Ints& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }

// Factors: one integer of each of 16 rows, for sums of products that are widened. Twins: two of each row, for the sums of two parts' inputs.
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
inline Ints lifted(Ints x, uint32_t bits) {              // to the left
    const __m128i by = _mm_cvtsi32_si128(static_cast<int32_t>(bits));
    return {_mm256_sll_epi32(x.a, by), _mm256_sll_epi32(x.b, by)};
}
inline Ints operator*(Ints x, Ints y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline Ints integers(const uint8_t* p) {                 // 16 signed bytes
    const __m128i b = fields<Field::kSigned>(p);
    return {_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
}

// Sums of the inputs of the parts of a span of 256, two parts a word of 16 bits each.
template <int kParts>
struct Totals {
    uint32_t words[4 * kParts];
    void gather(const int32_t* sums) {   // [16], of 16 inputs each
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 8));
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        if (kParts == 2) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), both);
        const __m256i whole = _mm256_madd_epi16(both, _mm256_set1_epi16(1));
        const __m128i eight = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words), eight);
    }
    Ints onto(Ints sum, Twins by, size_t pair) const {
        const __m256i word = _mm256_set1_epi32(static_cast<int32_t>(words[pair]));
        return sum + Ints{_mm256_madd_epi16(by.a, word), _mm256_madd_epi16(by.b, word)};
    }
};

// Instructions in the order in which they are written: the compiler neither moves nor joins them.
//
// Zen 3 chooses one of four vector pipes for an instruction when it enters the queue, and products go to two of them only. Products and additions
// in turn crowd those two (5.3 cycles for 8 and 8); two products, then two additions of products made two tokens before, do so less (4.7).

// Memory of any type, as the asm statements read it.
struct __attribute__((may_alias, packed)) Word { uint32_t value; };
struct __attribute__((may_alias, packed)) Row { uint8_t value[32]; };

inline __m256i ordered_load(const void* p) {
    __m256i r;
    asm volatile("vmovdqu %1, %0" : "=x"(r) : "m"(*static_cast<const Row*>(p)));
    return r;
}
inline __m256i ordered_broadcast(const void* p) {
    __m256i r;
    asm volatile("vpbroadcastd %1, %0" : "=x"(r) : "m"(*static_cast<const Word*>(p)));
    return r;
}
// Sums of two products: of unsigned bytes with signed ones in 16 bits, or of 16-bit integers in 32.
template <bool kBytes>
inline __m256i ordered_products(__m256i w, __m256i x) {
    __m256i r;
    if (kBytes)
        asm volatile("vpmaddubsw %2, %1, %0" : "=x"(r) : "x"(w), "x"(x));
    else
        asm volatile("vpmaddwd %2, %1, %0" : "=x"(r) : "x"(w), "x"(x));
    return r;
}
template <bool kBytes>
inline __m256i ordered_sum(__m256i sum, __m256i x) {
    __m256i r;
    if (kBytes)
        asm volatile("vpaddw %2, %1, %0" : "=x"(r) : "x"(sum), "x"(x));
    else
        asm volatile("vpaddd %2, %1, %0" : "=x"(r) : "x"(sum), "x"(x));
    return r;
}

struct __attribute__((may_alias, packed)) HalfRow { uint8_t value[16]; };
struct UpperHalves { uint32_t value[8]; };
alignas(32) constexpr UpperHalves kUpperHalves = {{0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u}};

inline __m256 ordered_spread(const float* p) {
    __m256 r;
    asm volatile("vbroadcastss %1, %0" : "=x"(r) : "m"(*p));
    return r;
}
inline __m256 ordered_floats(const void* p) {
    __m256 r;
    asm volatile("vmovups %1, %0" : "=x"(r) : "m"(*static_cast<const Row*>(p)));
    return r;
}
inline __m256 ordered_halves(const void* p) {
    __m256 r;
    asm volatile("vcvtph2ps %1, %0" : "=x"(r) : "m"(*static_cast<const HalfRow*>(p)));
    return r;
}
inline void ordered_store(float* p, __m256 x) { asm volatile("vmovups %1, %0" : "=m"(*reinterpret_cast<Row*>(p)) : "x"(x)); }
inline void ordered_fma(__m256& sum, __m256 w, __m256 x) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x)); }

// Words of 64 bits, of which `product` multiplies the lower halves.
typedef uint64_t Lanes __attribute__((vector_size(32)));
inline Lanes product(Lanes a, Lanes b) { return (Lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
const Lanes kCount = {0, 1, 2, 3};

constexpr size_t kSums = 6, kIntSums = 2;  // of a roofline, of floats and of integers: as many as keep every unit busy
// What the roofline measures: sums of products of 8-bit activations with codes of at most `kBits` bits, `kDots` of each 8 bits a call. Products
// of pairs are added up in 16 bits as long as they fit, then widened.
template <int kBits>
constexpr size_t kDots = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
template <int kBits>
inline Ints dots(Ints sum, Quad codes, Quad& x) {
    const __m256i one = _mm256_set1_epi16(1);
    touch(x);
    __m256i a = _mm256_maddubs_epi16(codes.a, x.a), b = _mm256_maddubs_epi16(codes.b, x.b);
#pragma GCC unroll 8
    for (size_t dot = 1; dot < kDots<kBits>; ++dot) {
        touch(x);
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(codes.a, x.a)), b = _mm256_add_epi16(b, _mm256_maddubs_epi16(codes.b, x.b));
    }
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(a, one)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(b, one))};
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#include "simd/untiled.h"
