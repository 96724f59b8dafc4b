// AVX-512 in plain C++: the instructions that the avx512vnni level uses, so that its bits can be compared on machines without them.
// Found before the compiler's header of this name, which is included first, as if the flags were not there.
#pragma once

#pragma push_macro("__AVX512F__")
#undef __AVX512F__
#pragma push_macro("__AVX512BW__")
#undef __AVX512BW__
#pragma push_macro("__AVX512DQ__")
#undef __AVX512DQ__
#pragma push_macro("__AVX512VL__")
#undef __AVX512VL__
#pragma push_macro("__AVX512VNNI__")
#undef __AVX512VNNI__
#include_next <immintrin.h>
#pragma pop_macro("__AVX512F__")
#pragma pop_macro("__AVX512BW__")
#pragma pop_macro("__AVX512DQ__")
#pragma pop_macro("__AVX512VL__")
#pragma pop_macro("__AVX512VNNI__")

// Whatever sources include that has assembly of its own: see the end.
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {
namespace emulated {

// 64 bytes as numbers of one type, and back.
template <class T>
struct Lanes {
    static constexpr int kCount = 64 / sizeof(T);
    T v[kCount];
    template <class V>
    static Lanes of(V x) { Lanes l; memcpy(&l, &x, sizeof l); return l; }
    template <class V>
    operator V() const { V x; memcpy(&x, this, sizeof x); return x; }
};

template <class T, class To, class V, class Each>
inline To each(V a, V b, Each f) {
    const Lanes<T> x = Lanes<T>::of(a), y = Lanes<T>::of(b);
    Lanes<T> r;
    for (int i = 0; i < Lanes<T>::kCount; ++i) r.v[i] = f(x.v[i], y.v[i]);
    return r;
}
#define EMULATED_FLOATS(name, expression) \
    inline __m512 name(__m512 a, __m512 b) { return each<float, __m512>(a, b, [](float x, float y) { return expression; }); }
#define EMULATED_INTS(name, type, expression) \
    inline __m512i name(__m512i a, __m512i b) { return each<type, __m512i>(a, b, [](type x, type y) { return static_cast<type>(expression); }); }
EMULATED_FLOATS(add_ps, x + y)
EMULATED_FLOATS(sub_ps, x - y)
EMULATED_FLOATS(mul_ps, x * y)
EMULATED_FLOATS(div_ps, x / y)
EMULATED_FLOATS(max_ps, x > y ? x : y)
EMULATED_FLOATS(min_ps, x < y ? x : y)
EMULATED_INTS(add_epi32, uint32_t, x + y)
EMULATED_INTS(sub_epi32, uint32_t, x - y)
EMULATED_INTS(mullo_epi32, uint32_t, x * y)
EMULATED_INTS(max_epi32, int32_t, x > y ? x : y)
EMULATED_INTS(and_si512, uint32_t, x & y)
EMULATED_INTS(or_si512, uint32_t, x | y)
EMULATED_INTS(xor_si512, uint32_t, x ^ y)
EMULATED_INTS(andnot_si512, uint32_t, ~x & y)
EMULATED_INTS(sub_epi8, uint8_t, x - y)
EMULATED_INTS(sub_epi16, uint16_t, x - y)
EMULATED_INTS(mullo_epi16, uint16_t, x * y)
EMULATED_INTS(mul_epu32, uint64_t, (x & 0xffffffffu) * (y & 0xffffffffu))
#undef EMULATED_FLOATS
#undef EMULATED_INTS

template <class To, class T>
inline To every(T x) {
    Lanes<T> r;
    for (T& lane : r.v) lane = x;
    return r;
}
inline __m512 set1_ps(float x) { return every<__m512>(x); }
inline __m512 setzero_ps() { return every<__m512>(0.0f); }
inline __m512i set1_epi32(int x) { return every<__m512i>(x); }
inline __m512i set1_epi16(short x) { return every<__m512i>(x); }
inline __m512i set1_epi8(char x) { return every<__m512i>(x); }
inline __m512i setzero_si512() { return every<__m512i>(0); }
inline __m512 loadu_ps(const void* p) { __m512 r; memcpy(&r, p, sizeof r); return r; }
inline __m512i loadu_si512(const void* p) { __m512i r; memcpy(&r, p, sizeof r); return r; }
inline void storeu_ps(void* p, __m512 x) { memcpy(p, &x, sizeof x); }
inline void storeu_si512(void* p, __m512i x) { memcpy(p, &x, sizeof x); }
inline __m512 castsi512_ps(__m512i x) { return loadu_ps(&x); }
inline __m512i castps_si512(__m512 x) { return loadu_si512(&x); }
inline __m256 extractf32x8_ps(__m512 x, int half) { __m256 r; memcpy(&r, reinterpret_cast<const char*>(&x) + 32 * half, sizeof r); return r; }
inline __m256 castps512_ps256(__m512 x) { return extractf32x8_ps(x, 0); }

inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    const Lanes<float> x = Lanes<float>::of(a), y = Lanes<float>::of(b), z = Lanes<float>::of(c);
    Lanes<float> r;
    for (int i = 0; i < 16; ++i) r.v[i] = fmaf(x.v[i], y.v[i], z.v[i]);
    return r;
}
inline __m512 fnmadd_ps(__m512 a, __m512 b, __m512 c) { return fmadd_ps(sub_ps(set1_ps(-0.0f), a), b, c); }
inline __m512i dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
    Lanes<uint32_t> r = Lanes<uint32_t>::of(sum);
    const Lanes<int16_t> x = Lanes<int16_t>::of(a), y = Lanes<int16_t>::of(b);
    for (int i = 0; i < 32; ++i) r.v[i / 2] += static_cast<uint32_t>(x.v[i] * y.v[i]);
    return r;
}
inline __m512i dpbusd_epi32(__m512i sum, __m512i w, __m512i x) {
    Lanes<uint32_t> r = Lanes<uint32_t>::of(sum);
    const Lanes<uint8_t> u = Lanes<uint8_t>::of(w);
    const Lanes<int8_t> s = Lanes<int8_t>::of(x);
    for (int i = 0; i < 64; ++i) r.v[i / 4] += static_cast<uint32_t>(u.v[i] * s.v[i]);
    return r;
}
inline __m512i shuffle_epi8(__m512i table, __m512i index) {
    const Lanes<uint8_t> t = Lanes<uint8_t>::of(table), at = Lanes<uint8_t>::of(index);
    Lanes<uint8_t> r;
    for (int i = 0; i < 64; ++i) r.v[i] = at.v[i] & 0x80 ? 0 : t.v[i / 16 * 16 + (at.v[i] & 15)];
    return r;
}
inline __m512i broadcast_i32x4(__m128i x) {
    Lanes<uint8_t> r;
    for (int i = 0; i < 4; ++i) memcpy(r.v + 16 * i, &x, 16);
    return r;
}

template <class T, class Each>
inline __m512i shifted(__m512i x, Each f) {
    return each<T, __m512i>(x, x, [&](T lane, T) { return static_cast<T>(f(lane)); });
}
inline __m512i slli_epi16(__m512i x, unsigned n) { return shifted<uint16_t>(x, [n](uint16_t v) { return n > 15 ? 0 : v << n; }); }
inline __m512i srli_epi16(__m512i x, unsigned n) { return shifted<uint16_t>(x, [n](uint16_t v) { return n > 15 ? 0 : v >> n; }); }
inline __m512i srai_epi16(__m512i x, unsigned n) { return shifted<int16_t>(x, [n](int16_t v) { return v >> (n > 15 ? 15 : n); }); }
inline __m512i slli_epi32(__m512i x, unsigned n) { return shifted<uint32_t>(x, [n](uint32_t v) { return n > 31 ? 0 : v << n; }); }

// Sixteen lanes of one type from as many of another.
template <class To, class T, class R, class V, class Each>
inline R converted(V x, Each f) {
    T from[16];
    To to[16];
    memcpy(from, &x, sizeof from);
    for (int i = 0; i < 16; ++i) to[i] = f(from[i]);
    R r;
    memcpy(&r, to, sizeof r);
    return r;
}
inline int32_t whole(float x) { return fabsf(x) < 0x1p31f ? static_cast<int32_t>(nearbyintf(x)) : INT32_MIN; }
inline __m512i cvtps_epi32(__m512 x) { return converted<int32_t, float, __m512i>(x, whole); }
inline __m512 cvtepi32_ps(__m512i x) { return converted<float, int32_t, __m512>(x, [](int32_t v) { return static_cast<float>(v); }); }
inline __m512i cvtepi8_epi32(__m128i x) { return converted<int32_t, int8_t, __m512i>(x, [](int8_t v) { return int32_t{v}; }); }
inline __m512i cvtepu8_epi32(__m128i x) { return converted<int32_t, uint8_t, __m512i>(x, [](uint8_t v) { return int32_t{v}; }); }
inline __m512i cvtepu16_epi32(__m256i x) { return converted<int32_t, uint16_t, __m512i>(x, [](uint16_t v) { return int32_t{v}; }); }
inline __m128i cvtepi32_epi8(__m512i x) { return converted<int8_t, int32_t, __m128i>(x, [](int32_t v) { return static_cast<int8_t>(v); }); }
inline __m256i cvtepi32_epi16(__m512i x) { return converted<int16_t, int32_t, __m256i>(x, [](int32_t v) { return static_cast<int16_t>(v); }); }
inline __m512 cvtph_ps(__m256i x) { return converted<float, uint16_t, __m512>(x, [](uint16_t v) { return _cvtsh_ss(v); }); }
inline __m512 roundscale_ps(__m512 x, int) { return converted<float, float, __m512>(x, nearbyintf); }
inline int reduce_add_epi32(__m512i x) {
    uint32_t sum = 0;
    for (uint32_t v : Lanes<uint32_t>::of(x).v) sum += v;
    return static_cast<int>(sum);
}

inline __mmask16 cmp_ps_mask(__m512 a, __m512 b, int how) {
    const Lanes<float> x = Lanes<float>::of(a), y = Lanes<float>::of(b);
    unsigned mask = 0;
    for (int i = 0; i < 16; ++i) {
        const bool unordered = isnan(x.v[i]) || isnan(y.v[i]);
        mask |= static_cast<unsigned>(how == _CMP_UNORD_Q ? unordered : x.v[i] < y.v[i]) << i;
    }
    return static_cast<__mmask16>(mask);
}
inline __m512 mask_blend_ps(__mmask16 mask, __m512 no, __m512 yes) {
    Lanes<float> r = Lanes<float>::of(no);
    const Lanes<float> y = Lanes<float>::of(yes);
    for (int i = 0; i < 16; ++i) r.v[i] = mask >> i & 1 ? y.v[i] : r.v[i];
    return r;
}
inline __m512i mask_mov_epi8(__m512i no, __mmask64 mask, __m512i yes) {
    Lanes<uint8_t> r = Lanes<uint8_t>::of(no);
    const Lanes<uint8_t> y = Lanes<uint8_t>::of(yes);
    for (int i = 0; i < 64; ++i) r.v[i] = mask >> i & 1 ? y.v[i] : r.v[i];
    return r;
}

}  // namespace emulated
}  // namespace

#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_add_ps emulated::add_ps
#define _mm512_and_si512 emulated::and_si512
#define _mm512_andnot_si512 emulated::andnot_si512
#define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#define _mm512_castps512_ps256 emulated::castps512_ps256
#define _mm512_castps_si512 emulated::castps_si512
#define _mm512_castsi512_ps emulated::castsi512_ps
#define _mm512_cmp_ps_mask emulated::cmp_ps_mask
#define _mm512_cvtepi32_epi16 emulated::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 emulated::cvtepi32_epi8
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 emulated::cvtepu8_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_div_ps emulated::div_ps
#define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
#define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#define _mm512_extractf32x8_ps emulated::extractf32x8_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fnmadd_ps emulated::fnmadd_ps
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_mask_blend_ps emulated::mask_blend_ps
#define _mm512_mask_mov_epi8 emulated::mask_mov_epi8
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_mul_epu32 emulated::mul_epu32
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_mullo_epi16 emulated::mullo_epi16
#define _mm512_max_epi32 emulated::max_epi32
#define _mm512_mullo_epi32 emulated::mullo_epi32
#define _mm512_or_si512 emulated::or_si512
#define _mm512_reduce_add_epi32 emulated::reduce_add_epi32
#define _mm512_roundscale_ps emulated::roundscale_ps
#define _mm512_set1_epi16 emulated::set1_epi16
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setzero_ps emulated::setzero_ps
#define _mm512_setzero_si512 emulated::setzero_si512
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#define _mm512_slli_epi16 emulated::slli_epi16
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_sll_epi32(x, n) emulated::slli_epi32(x, static_cast<unsigned>(_mm_cvtsi128_si32(n)))
#define _mm512_srai_epi16 emulated::srai_epi16
#define _mm512_srli_epi16 emulated::srli_epi16
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_storeu_si512 emulated::storeu_si512
#define _mm512_sub_epi16 emulated::sub_epi16
#define _mm512_sub_epi32 emulated::sub_epi32
#define _mm512_sub_epi8 emulated::sub_epi8
#define _mm512_sub_ps emulated::sub_ps
#define _mm512_xor_si512 emulated::xor_si512

// Tiles of AMX, whose macros are assembly: rows and bytes of each by the configuration, products of bytes. Of bf16 as linear/split.cpp defines them.
namespace {
namespace emulated {

struct Tile {
    size_t rows, bytes;
    uint8_t v[16][64];
};
inline Tile* tiles() { static thread_local Tile all[8]; return all; }
inline void tile_loadconfig(const void* p) {
    const uint8_t* shapes = static_cast<const uint8_t*>(p);
    for (int i = 0; i < 8; ++i) tiles()[i] = {shapes[48 + i], static_cast<size_t>(shapes[16 + 2 * i] | shapes[17 + 2 * i] << 8), {}};
}
inline void tile_zero(int to) { memset(tiles()[to].v, 0, sizeof tiles()[to].v); }
inline void tile_loadd(int to, const void* p, size_t stride) {
    tile_zero(to);
    for (size_t r = 0; r < tiles()[to].rows; ++r) memcpy(tiles()[to].v[r], static_cast<const uint8_t*>(p) + r * stride, tiles()[to].bytes);
}
inline void tile_stored(int from, void* p, size_t stride) {
    for (size_t r = 0; r < tiles()[from].rows; ++r) memcpy(static_cast<uint8_t*>(p) + r * stride, tiles()[from].v[r], tiles()[from].bytes);
}
// each(sum, word of a, word of b) for pairs of words ascending; a [rows, words], b [words, columns].
template <class T, class Each>
inline void tile_products(int sums, int a, int b, Each each) {
    Tile *to = tiles() + sums, *x = tiles() + a, *w = tiles() + b;
    for (size_t m = 0; m < to->rows; ++m)
        for (size_t n = 0; n < to->bytes / 4; ++n) {
            T sum;
            memcpy(&sum, to->v[m] + 4 * n, 4);
            sum = each(sum, x->v[m], w, n, x->bytes / 4);
            memcpy(to->v[m] + 4 * n, &sum, 4);
        }
}
template <class Weight>
inline void tile_bytes(int sums, int a, int b) {
    tile_products<uint32_t>(sums, a, b, [](uint32_t sum, const uint8_t* x, const Tile* w, size_t n, size_t words) {
        for (size_t i = 0; i < 4 * words; ++i) sum += static_cast<uint32_t>(static_cast<int8_t>(x[i]) * static_cast<Weight>(w->v[i / 4][4 * n + i % 4]));
        return sum;
    });
}
inline void tile_dpbssd(int sums, int a, int b) { tile_bytes<int8_t>(sums, a, b); }
inline void tile_dpbsud(int sums, int a, int b) { tile_bytes<uint8_t>(sums, a, b); }
inline float normal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float widened_half(const uint8_t* p) {
    const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline void tile_dpbf16ps(int sums, int a, int b) {
    tile_products<float>(sums, a, b, [](float sum, const uint8_t* x, const Tile* w, size_t n, size_t words) {
        float sides[2] = {0.0f, 0.0f};
        for (size_t i = 0; i < words; ++i)
            for (size_t side = 0; side < 2; ++side)
                sides[side] = normal(fmaf(widened_half(w->v[i] + 4 * n + 2 * side), widened_half(x + 4 * i + 2 * side), sides[side]));
        return normal(sum + normal(sides[0] + sides[1]));
    });
}

}  // namespace emulated
}  // namespace

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::tile_loadconfig
#define _tile_release() static_cast<void>(0)
#define _tile_zero emulated::tile_zero
#define _tile_loadd emulated::tile_loadd
#define _tile_stored emulated::tile_stored
#define _tile_dpbssd emulated::tile_dpbssd
#define _tile_dpbsud emulated::tile_dpbsud
#define _tile_dpbf16ps emulated::tile_dpbf16ps

// What keeps a value in a register finds none of 64 bytes.
#define __asm__(...) static_cast<void>(0)
#define asm
#define volatile(...) static_cast<void>(0)
