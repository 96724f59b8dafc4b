// Integer arithmetic of packed products at every ISA level: codes of sixteen rows, their dots with activations, planes of bits.
//
// A quad is four consecutive inputs of sixteen rows: lane r, 32 bits, holds row r. Codes are unsigned; what they mean is code - zero.
// For kernel sources only: everything lives in the namespace of the level that includes it.
#pragma once

#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kGroupQuads = 8;        // quads of a group of 32 inputs
constexpr size_t kQuadBytes = 64;

inline uint32_t word(const void* p) { uint32_t w; memcpy(&w, p, 4); return w; }
inline void set_word(void* p, uint32_t w) { memcpy(p, &w, 4); }

// Loops over registers are unrolled, loops over arrays are not.
#if defined(__AVX2__)
#define RIDGELINE_UNROLL _Pragma("GCC unroll 16")
#else
#define RIDGELINE_UNROLL
#endif

// Quad: 64 unsigned codes. Ints: 16 integers of 32 bits. Pairs: sums of products on their way to Ints, which hold `kRun` of them.
#if defined(__AVX512VNNI__)

struct Quad { __m512i v; };
struct Ints { __m512i v; };
using Pairs = Ints;
template <int kBits> constexpr size_t kRun = kGroupQuads;
template <int kBits> constexpr bool kSigned = false;     // products take code - zero by themselves

inline Quad load_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_quad(uint8_t* p, Quad w) { _mm512_storeu_si512(p, w.v); }
inline Quad either(Quad x, Quad y) { return {_mm512_or_si512(x.v, y.v)}; }
inline Quad down(Quad w, unsigned bits, char mask) { return {_mm512_and_si512(_mm512_srli_epi16(w.v, bits), _mm512_set1_epi8(mask))}; }
inline Quad up(Quad w, unsigned bits, char mask) { return {_mm512_and_si512(_mm512_slli_epi16(w.v, bits), _mm512_set1_epi8(mask))}; }
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

#elif defined(__AVX2__)

struct Quad { __m256i a, b; };
struct Ints { __m256i a, b; };
struct Pairs { __m256i a, b; };          // 32 integers of 16 bits; of 8-bit codes: of 32 bits
// Products that fit into 16 bits: run * 2 * (2^bits - 1) * 127 < 2^15. Two 8-bit products fill them, so those are widened at once.
template <int kBits> constexpr size_t kRun = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 8;
template <int kBits> constexpr bool kSigned = kBits == 8;

inline Quad load_quad(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void store_quad(uint8_t* p, Quad w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), w.b);
}
inline Quad either(Quad x, Quad y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline Quad down(Quad w, unsigned bits, char mask) {
    const __m256i m = _mm256_set1_epi8(mask);
    return {_mm256_and_si256(_mm256_srli_epi16(w.a, static_cast<int>(bits)), m), _mm256_and_si256(_mm256_srli_epi16(w.b, static_cast<int>(bits)), m)};
}
inline Quad up(Quad w, unsigned bits, char mask) {
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

#else

struct Quad { uint8_t v[kQuadBytes]; };
struct Ints { int32_t v[kLanes]; };
using Pairs = Ints;
template <int kBits> constexpr size_t kRun = kGroupQuads;
template <int kBits> constexpr bool kSigned = false;
#define RIDGELINE_EACH(type, count, expression) type r; for (size_t i = 0; i < (count); ++i) r.v[i] = (expression); return r

inline Quad load_quad(const uint8_t* p) { Quad w; memcpy(w.v, p, sizeof w.v); return w; }
inline void store_quad(uint8_t* p, Quad w) { memcpy(p, w.v, sizeof w.v); }
inline Quad either(Quad x, Quad y) { RIDGELINE_EACH(Quad, kQuadBytes, static_cast<uint8_t>(x.v[i] | y.v[i])); }
inline Quad down(Quad w, unsigned bits, char mask) { RIDGELINE_EACH(Quad, kQuadBytes, static_cast<uint8_t>((w.v[i] >> bits) & mask)); }
inline Quad up(Quad w, unsigned bits, char mask) { RIDGELINE_EACH(Quad, kQuadBytes, static_cast<uint8_t>((w.v[i] << bits) & mask)); }
inline Quad look_up(Quad w, const uint8_t* table) { RIDGELINE_EACH(Quad, kQuadBytes, table[w.v[i]]); }
inline Ints ints(int32_t x) { RIDGELINE_EACH(Ints, kLanes, x); }
inline Ints operator+(Ints x, Ints y) { RIDGELINE_EACH(Ints, kLanes, x.v[i] + y.v[i]); }
inline Vec floats(Ints x) { RIDGELINE_EACH(Vec, kLanes, static_cast<float>(x.v[i])); }
inline Pairs no_pairs() { return ints(0); }
template <int kBits> inline Ints widen(Pairs x) { return x; }
template <int kBits> inline Pairs products(Pairs sum, Quad w, const int8_t* x) {
    RIDGELINE_EACH(Pairs, kLanes, sum.v[i] + w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] + w.v[4 * i + 3] * x[3]);
}
#undef RIDGELINE_EACH

#endif

// Bits `from` … of each byte moved to bits `to` …, under a mask.
inline Quad shifted(Quad w, unsigned from, unsigned to, char mask) { return from >= to ? down(w, from - to, mask) : up(w, to - from, mask); }

// Planes of bits, the parts of codes of one group of 32 inputs: how many bytes, how quad t is read, how all quads are written, how row r is
// read. A plane of b bits holds 8 / b quads in each 64 bytes, the first in the lowest bits: 64-byte piece t * b / 8, bits t * b % 8 ….
template <int kBits>
struct Plane {
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static constexpr uint8_t kMask = static_cast<uint8_t>((1u << kBits) - 1);

    // Quad t, shifted left by `lift`.
    static Quad quad(const uint8_t* plane, size_t t, unsigned lift = 0) {
        const Quad w = load_quad(plane + t * kBits / 8 * kQuadBytes);
        if (kBits == 8) return w;
        return shifted(w, static_cast<unsigned>(t * kBits % 8), lift, static_cast<char>(kMask << lift));
    }
    static void write(uint8_t* plane, const Quad* quads, unsigned lift = 0) {
        for (size_t piece = 0; piece < kBits; ++piece) {
            constexpr size_t kEach = 8 / kBits;
            Quad joined = quads[piece * kEach];
            for (size_t i = 0; i < kEach; ++i) {
                const Quad part = shifted(quads[piece * kEach + i], lift, static_cast<unsigned>(i * kBits), static_cast<char>(kMask << i * kBits));
                joined = i == 0 ? part : either(joined, part);
            }
            store_quad(plane + piece * kQuadBytes, joined);
        }
    }
    // Onto codes, which begin as 0.
    static void read(const uint8_t* plane, size_t row, uint8_t* codes, unsigned lift = 0) {
        for (size_t t = 0; t < kGroupQuads; ++t) {
            const uint32_t part = (word(plane + t * kBits / 8 * kQuadBytes + 4 * row) >> (t * kBits % 8)) & kMask * 0x01010101u;
            set_word(codes + 4 * t, word(codes + 4 * t) | part << lift);
        }
    }
};

// Codes of some bits as one plane, or two: the lower bits first.
template <int kLow, int kHigh = 0>
struct Codings {
    static constexpr int kBits = kLow + kHigh;
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static int value(uint8_t code) { return code; }          // what `quad` gives for a stored code
    static Quad quad(const uint8_t* planes, size_t t) {
        return either(Plane<kLow>::quad(planes, t), Plane<kHigh>::quad(planes + Plane<kLow>::kBytes, t, kLow));
    }
    static void write(uint8_t* planes, const Quad* quads) {
        Plane<kLow>::write(planes, quads);
        Plane<kHigh>::write(planes + Plane<kLow>::kBytes, quads, kLow);
    }
    static void read(const uint8_t* planes, size_t row, uint8_t* codes) {
        memset(codes, 0, 4 * kGroupQuads);
        Plane<kLow>::read(planes, row, codes);
        Plane<kHigh>::read(planes + Plane<kLow>::kBytes, row, codes, kLow);
    }
};
template <int kLow>
struct Codings<kLow, 0> {
    static constexpr int kBits = kLow;
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static int value(uint8_t code) { return code; }
    static Quad quad(const uint8_t* planes, size_t t) { return Plane<kLow>::quad(planes, t); }
    static void write(uint8_t* planes, const Quad* quads) { Plane<kLow>::write(planes, quads); }
    static void read(const uint8_t* planes, size_t row, uint8_t* codes) {
        memset(codes, 0, 4 * kGroupQuads);
        Plane<kLow>::read(planes, row, codes);
    }
};

// Codes of 5 or 6 bits, most of them in bytes of their own, which one operation reads: 64-byte piece t < kBits has quad t in its lower bits and a
// field of the rest above; the fields of some pieces together are the other quads. Of 5 bits piece 4 holds four fields of two bits instead.
template <int kCodeBits>
struct OwnBytes {
    static constexpr int kBits = kCodeBits;
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static constexpr char kMask = (1 << kBits) - 1;
    static int value(uint8_t code) { return code; }
    static Quad field(const uint8_t* planes, size_t piece, unsigned from, unsigned to, int mask) {
        return shifted(load_quad(planes + piece * kQuadBytes), from, to, static_cast<char>(mask << to));
    }
    static Quad quad(const uint8_t* planes, size_t t) {
        if (kBits == 5) {
            if (t < 4) return field(planes, t, 0, 0, 31);
            return either(field(planes, t - 4, 5, 0, 7), field(planes, 4, 2 * static_cast<unsigned>(t - 4), 3, 3));
        }
        if (t < 6) return field(planes, t, 0, 0, 63);
        const size_t first = 3 * (t - 6);
        return either(either(field(planes, first, 6, 0, 3), field(planes, first + 1, 6, 2, 3)), field(planes, first + 2, 6, 4, 3));
    }
    static void write(uint8_t* planes, const Quad* quads) {
        Quad own[kBits];
        if (kBits == 5) {
            for (size_t t = 0; t < 4; ++t) own[t] = either(quads[t], shifted(quads[t + 4], 0, 5, static_cast<char>(7 << 5)));
            own[4] = shifted(quads[4], 3, 0, 3);
            for (unsigned t = 1; t < 4; ++t) own[4] = either(own[4], shifted(quads[4 + t], 3, 2 * t, static_cast<char>(3 << 2 * t)));
        } else {
            for (unsigned t = 0; t < 6; ++t) own[t] = either(quads[t], shifted(quads[6 + t / 3], 2 * (t % 3), 6, static_cast<char>(3 << 6)));
        }
        for (size_t t = 0; t < kBits; ++t) store_quad(planes + t * kQuadBytes, own[t]);
    }
    static void read(const uint8_t* planes, size_t row, uint8_t* codes) {
        for (size_t t = 0; t < kGroupQuads; ++t) {
            uint8_t bytes[kQuadBytes];
            store_quad(bytes, quad(planes, t));
            memcpy(codes + 4 * t, bytes + 4 * row, 4);
        }
    }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
