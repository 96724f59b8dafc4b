// The vocabulary of simd/simd.h in AVX-512 with VNNI: a vector is one register.
#pragma once

#include "simd/x86.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Loops over registers are unrolled, loops over arrays are not.
#define RIDGELINE_UNROLL _Pragma("GCC unroll 16")

constexpr int kRecordTokens = 12;        // tokens that share the reading of a packed record straight from memory: as many as registers hold
constexpr int kSpanRecordTokens = kRecordTokens;
constexpr int kReadStreams = 4;           // of packed records, for one token: blocks in turn; bytes of all that are on their way, and the cache they come to
constexpr size_t kInFlight = 6144;
constexpr int kFetchLevel = 3;           // 3: the first, 2: the second
// Blocks that m tokens read in turn, and how many of them are in work at once for M tokens: as many as registers hold. Four are faster for one
// thread and four to six tokens, and slower where two threads wait for memory.
constexpr int streams_of(size_t m, bool spans) { return m == 1 ? kReadStreams : m <= 6 || spans ? 2 : 1; }
template <int M> constexpr int kBlocksAtOnce = M == 1 ? kReadStreams : M <= 6 ? 2 : 1;
constexpr bool kTiles = true;            // more of them are multiplied by this file: where there is AMX by its tiles
constexpr bool kTiledSums = false;
constexpr size_t kFloatTokens = 12, kFloatPairTokens = 12;  // of a tile of float weights with one block, with two
constexpr bool kFloatSteps = false;

#define RIDGELINE_GROUP_TILES "linear/linear.h"
#define RIDGELINE_SPAN_TILES "linear/avx512/tiles.h"
#define RIDGELINE_FLOAT_STEPS "linear/linear.h"

// Panels in fp32, which rows of x meet kPanelRows at a time, kPanelColumns of it. The compiler's code is as quick here: no input is taken.
constexpr size_t kPanelRows = 6, kPanelColumns = 2 * kLanes;
inline size_t panel_turns(const float*, const uint8_t*, size_t, const float*, size_t, size_t, float*, size_t) { return 0; }

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
inline Vec where_bits(uint32_t bits, Vec yes, Vec no) { return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), no.v, yes.v)}; }
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
// 2^(code - 128) of 16 bytes; the two least are below the normal numbers.
inline Vec load_e8m0_halved(const uint8_t* p) {
    const __m512i n = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), one = _mm512_set1_epi32(1);
    return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(n, one), 23), _mm512_slli_epi32(_mm512_add_epi32(n, one), 21)))};
}
// 2^-120 of 16 numbers of e4m3: exponents keep their bits, and NaN is 480. Twice 16 numbers of e2m1, four bits from `shift` on.
inline Vec load_e4m3(const uint8_t* p) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 20);
    return {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int32_t>(0x87f00000u))))};
}
inline Vec load_e2m1_doubled(const uint8_t* p, size_t shift) {
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i c = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(all, static_cast<int>(shift)), _mm_set1_epi8(15)));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c))};
}
inline __m256 half(Vec x, bool upper) { return upper ? _mm512_extractf32x8_ps(x.v, 1) : _mm512_castps512_ps256(x.v); }
inline float sum_of(Vec x) { return sum_of(half(x, false), half(x, true)); }
inline float largest_of(Vec x) { return largest_of(half(x, false), half(x, true)); }
inline void touch(Vec& x) { asm volatile("" : "+v"(x.v)); }

// a * b + c, rounded once where the level has such an instruction.
inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Part: one register of a vector, where it matters how many there are.
using Part = __m512;
inline Part load_part(const float* p) { return _mm512_loadu_ps(p); }
inline Part all_part(float x) { return _mm512_set1_ps(x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }
inline void store_part(float* p, Part a) { _mm512_storeu_ps(p, a); }
inline Part load_part_bf16(const uint16_t* p) { return load_bf16(p).v; }
inline Part load_part_int8(const int8_t* p) { return load_int8(p).v; }
inline __m256 half_sums(Part x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); }
// Into a register: the compiler would rather read from memory at every use, and the ports that load are the bottleneck.
inline Part load_once(const float* p) {
    Part x = load_part(p);
    __asm__("" : "+v"(x));
    return x;
}
// Sums of [R, K] vectors, six in all, to rows of scores, `stride` apart. What stands behind the last key of a row may be overwritten.
template <int R, int K>
inline void store_sums(const Part (*x)[1], float* scores, size_t stride) {
    const __m256 halved[6] = {half_sums(x[0][0]), half_sums(x[1][0]), half_sums(x[2][0]), half_sums(x[3][0]), half_sums(x[4][0]), half_sums(x[5][0])};
    store_sums_of<R, K>(halved, scores, stride);
}

// Weights of bf16 in the order that is quickest to widen, the order of rows again, and the former from the latter.
inline Vec load_bf16_shuffled(const uint8_t* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
inline Vec unshuffled_bf16(Vec x) { return x; }
inline Vec shuffled_bf16(Vec x) { return x; }

struct Quad { __m512i v; };
struct Ints { __m512i v; };
using Pairs = Ints;
template <int kBits> constexpr size_t kRun = kGroupQuads;
template <int kBits> constexpr bool kSigned = false;     // products take code - zero by themselves

inline Quad load_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_quad(uint8_t* p, Quad w) { _mm512_storeu_si512(p, w.v); }
inline Quad or_(Quad x, Quad y) { return {_mm512_or_si512(x.v, y.v)}; }
inline Quad shift_right(Quad w, unsigned bits, char mask) { return {_mm512_and_si512(_mm512_srli_epi16(w.v, bits), _mm512_set1_epi8(mask))}; }
inline Quad shift_left(Quad w, unsigned bits, char mask) { return {_mm512_and_si512(_mm512_slli_epi16(w.v, bits), _mm512_set1_epi8(mask))}; }
inline Quad look_up(Quad w, const uint8_t* table) {      // table [16]
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), w.v)};
}
inline Ints ints(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints operator+(Ints x, Ints y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline Vec floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Pairs no_pairs() { return {_mm512_setzero_si512()}; }
template <int kBits> inline Ints widen(Pairs x) { return x; }
template <int kBits> inline Pairs products(Pairs sum, Quad w, const int8_t* x) {
    return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(static_cast<int32_t>(word(x))))};
}
inline Ints operator-(Ints x, Ints y) { return {_mm512_sub_epi32(x.v, y.v)}; }
inline Ints lifted(Ints x, uint32_t bits) { return {_mm512_sll_epi32(x.v, _mm_cvtsi32_si128(static_cast<int32_t>(bits)))}; }    // to the left
inline Ints operator*(Ints x, Ints y) { return {_mm512_mullo_epi32(x.v, y.v)}; }
inline void touch(Quad& x) { asm volatile("" : "+v"(x.v)); }
inline void touch(Ints& x) { asm volatile("" : "+v"(x.v)); }

// Factors: one integer of each of 16 rows, for sums of products that are widened.
using Factors = Ints;
template <Field kField>
inline Factors factors(const uint8_t* p) {
    const __m128i b = fields<kField>(p);
    return {kField == Field::kSigned ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b)};
}
// Twins: two factors of each row, in 16 bits each, for the sums of two parts' inputs.
struct Twins { __m512i v; };
template <Field kField>
inline Twins twins(const uint8_t* first, const uint8_t* second) {
    const Factors x = factors<kField>(first), y = factors<kField>(second);
    const __m512i low = kField == Field::kSigned ? _mm512_and_si512(x.v, _mm512_set1_epi32(0xffff)) : x.v;
    return {_mm512_or_si512(low, _mm512_slli_epi32(y.v, 16))};
}
inline Ints widened(Pairs x, Factors by) { return x * by; }
inline Ints integers(const uint8_t* p) { return factors<Field::kSigned>(p); }

// Sums of the inputs of the parts of a span of 256, two parts a word of 16 bits each.
template <int kParts>
struct Totals {
    uint32_t words[4 * kParts];
    void gather(const int32_t* sums) {   // [16], of 16 inputs each
        const __m256i each = _mm512_cvtepi32_epi16(_mm512_loadu_si512(sums));
        if (kParts == 2) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), each);
        const __m256i whole = _mm256_madd_epi16(each, _mm256_set1_epi16(1));
        const __m128i eight = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words), eight);
    }
    Ints onto(Ints sum, Twins by, size_t pair) const {
        return {_mm512_dpwssd_epi32(sum.v, by.v, _mm512_set1_epi32(static_cast<int32_t>(words[pair])))};
    }
};

// Words of 64 bits, of which `product` multiplies the lower halves.
typedef uint64_t Lanes __attribute__((vector_size(64)));
inline Lanes product(Lanes a, Lanes b) { return (Lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
const Lanes kCount = {0, 1, 2, 3, 4, 5, 6, 7};

constexpr size_t kSums = 12, kIntSums = 12;  // of a roofline, of floats and of integers: as many as keep every unit busy
// What the roofline measures: sums of products of 8-bit activations with codes of at most `kBits` bits, `kDots` of each 8 bits a call.
template <int kBits>
constexpr size_t kDots = 1;
template <int kBits>
inline Ints dots(Ints sum, Quad codes, Quad& x) { return {_mm512_dpbusd_epi32(sum.v, codes.v, x.v)}; }
// Pairs of bf16 into fp32. Not every machine of this level has them: `measure` asks.
constexpr size_t kBF16Sums = 12;
__attribute__((target("avx512bf16"))) inline void bf16_dots(size_t rounds) {
    __m512 sum[kBF16Sums];
    __m512i x = _mm512_set1_epi8(0x3f), y = x;
#pragma GCC unroll 12
    for (size_t i = 0; i < kBF16Sums; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
    asm volatile("" : "+v"(x), "+v"(y));
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (size_t i = 0; i < kBF16Sums; ++i) {
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)y);
            asm volatile("" : "+v"(sum[i]));
        }
}
constexpr void (*kBF16Dots)(size_t) = bf16_dots;

// Products of tiles by AMX. Not every machine of this level has it: who calls these asks. A thread has its tiles between begin and end.
#define RIDGELINE_AMX __attribute__((target("amx-tile,amx-bf16")))
struct TileShapes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
// In memory of its own: compilers know of 8 bytes that the instruction reads.
alignas(64) const TileShapes kTileShapes = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
RIDGELINE_AMX inline void begin_tiles() { _tile_loadconfig(&kTileShapes); }
RIDGELINE_AMX inline void end_tiles() { _tile_release(); }

// Inputs of a token into records, `kTileRecord` bytes apart: 32 high halves, and the low ones half a record behind. What is below the normal
// numbers is taken as zero.
__attribute__((target("avx512bf16"))) inline void store_halves(const float* x, size_t groups, uint8_t* to) {
    for (size_t group = 0; group < groups; ++group, x += kTileInputs, to += kTileRecord) {
        const __m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + kLanes);
        const __m512i high = (__m512i)_mm512_cvtne2ps_pbh(second, first);
        const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16);
        const __m512i wider = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16);
        const __m512 low = _mm512_sub_ps(first, _mm512_castsi512_ps(wide)), lower = _mm512_sub_ps(second, _mm512_castsi512_ps(wider));
        _mm512_storeu_si512(to, high);
        _mm512_storeu_si512(to + kTileRecord / 2, (__m512i)_mm512_cvtne2ps_pbh(lower, low));
    }
}

// Sums [16 or 32, 32] of `kTokenTiles` tiles of tokens with two of outputs: linear/split.cpp says in which order.
template <int kTokenTiles>
RIDGELINE_AMX void tile_sums(const TilePair& of, float* out, size_t stride) {
    constexpr size_t kLow = kTileRecord / 2;
    constexpr bool kTwo = kTokenTiles == 2;
    const uint8_t *x = of.x, *y = of.x + of.apart, *w = of.w[0], *v = of.w[1], *ahead = of.ahead;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t group = 0; group < of.groups; ++group, x += kTileRecord, y += kTileRecord, w += kTileRecord, v += kTileRecord, ahead += of.fetched) {
        for (size_t line = 0; line < of.fetched; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        _tile_loadd(4, x + kLow, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, v, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            _tile_loadd(5, y + kLow, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_loadd(4, x, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            _tile_loadd(5, y, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_loadd(6, w + kLow, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (kTwo) _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, v + kLow, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) _tile_dpbf16ps(3, 5, 7);
    }
    const size_t bytes = stride * sizeof(float);
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + kTileRows, bytes);
    if constexpr (kTwo) {
        _tile_stored(2, out + kTileRows * stride, bytes);
        _tile_stored(3, out + kTileRows * stride + kTileRows, bytes);
    }
}
constexpr bool kTileProducts = true;
constexpr void (*kTilesBegin)() = begin_tiles;
constexpr void (*kTilesEnd)() = end_tiles;
constexpr void (*kStoreHalves)(const float*, size_t, uint8_t*) = store_halves;
constexpr void (*kTileSums[2])(const TilePair&, float*, size_t) = {tile_sums<1>, tile_sums<2>};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
