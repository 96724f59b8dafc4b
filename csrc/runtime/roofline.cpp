// The loops of a roofline, for one ISA level. An empty `asm` makes a value look changed, so that no product is hoisted or dropped.
#include "runtime/roofline.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

void clock(size_t rounds) {
    constexpr size_t kChain = 64;
    size_t sum = 0, step = 1;
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 64
        for (size_t i = 0; i < kChain; ++i) {
            sum += step;
            asm volatile("" : "+r"(sum), "+r"(step));
        }
}

#if defined(__AVX512F__)

using Words = __m512i;
using Floats = __m512;
Words load(const uint8_t* p) { return _mm512_loadu_si512(p); }
Words either(Words a, Words b) { return _mm512_or_si512(a, b); }
Words none() { return _mm512_setzero_si512(); }
Floats floats(float x) { return _mm512_set1_ps(x); }
Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
Words bytes_of(char x) { return _mm512_set1_epi8(x); }

#elif defined(__AVX2__)

using Words = __m256i;
using Floats = __m256;
Words load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
Words either(Words a, Words b) { return _mm256_or_si256(a, b); }
Words none() { return _mm256_setzero_si256(); }
Floats floats(float x) { return _mm256_set1_ps(x); }
Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
Words bytes_of(char x) { return _mm256_set1_epi8(x); }

#endif

#if defined(__AVX2__)

constexpr size_t kAccumulators = 12;     // two multiply-adds a cycle, each ready after four or five

template <typename T>
void touch(T& x) {
    asm volatile("" : "+v"(x));
}

// A core reads more from several places at once than from one.
void read(const uint8_t* data, size_t bytes, size_t rounds) {
    constexpr size_t kLoads = kReadStep / sizeof(Words), kStreams = 4;
    const size_t each = bytes / kStreams / kReadStep * kReadStep;
    Words seen[kLoads];
    for (size_t i = 0; i < kLoads; ++i) seen[i] = none();
    const auto take = [&](const uint8_t* p) {
#pragma GCC unroll 8
        for (size_t i = 0; i < kLoads; ++i) seen[i] = either(seen[i], load(p + i * sizeof(Words)));
    };
    for (size_t round = 0; round < rounds; ++round) {
        for (size_t at = 0; at < each; at += kReadStep)
#pragma GCC unroll 4
            for (size_t stream = 0; stream < kStreams; ++stream) take(data + stream * each + at);
        for (size_t at = kStreams * each; at < bytes; at += kReadStep) take(data + at);
    }
    for (size_t i = 0; i < kLoads; ++i) touch(seen[i]);
}

void f32(size_t rounds) {
    Floats sum[kAccumulators], x = floats(1.0001f), y = floats(0.9999f);
#pragma GCC unroll 12
    for (size_t i = 0; i < kAccumulators; ++i) sum[i] = floats(static_cast<float>(i));
    touch(x), touch(y);
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (size_t i = 0; i < kAccumulators; ++i) {
            sum[i] = fma(sum[i], x, y);
            touch(sum[i]);
        }
}
constexpr Loop kF32 = {f32, kAccumulators * sizeof(Floats) / 4 * 2};

#else

constexpr size_t kAccumulators = 64;

void read(const uint8_t* data, size_t bytes, size_t rounds) {
    uint64_t seen = 0;
    for (size_t round = 0; round < rounds; ++round)
        for (size_t i = 0; i < bytes; i += kReadStep) {
            const uint64_t* words = reinterpret_cast<const uint64_t*>(data + i);
#pragma GCC unroll 32
            for (size_t j = 0; j < kReadStep / 8; ++j) seen |= words[j];
        }
    asm volatile("" : "+r"(seen));
}

void f32(size_t rounds) {
    float sum[kAccumulators] = {}, x = 1.0001f, y = 0.9999f;
    for (size_t round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < kAccumulators; ++i) sum[i] = sum[i] * x + y;
        asm volatile("" : : "r"(sum) : "memory");
    }
}
constexpr Loop kF32 = {f32, kAccumulators * 2};

void int8(size_t rounds) {
    int32_t sum[kAccumulators] = {};
    int8_t code[kAccumulators] = {3};
    int32_t x = 2;
    for (size_t round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < kAccumulators; ++i) sum[i] += code[i] * x;
        asm volatile("" : "+r"(x) : "r"(sum), "r"(code) : "memory");
    }
}
constexpr Loop kInt8 = {int8, kAccumulators * 2};
constexpr Loop kInt4 = kInt8, kInt5 = kInt8, kInt6 = kInt8;

#endif

#if defined(__AVX512F__)

// Not every machine of this level has them: `measure` asks.
__attribute__((target("avx512bf16"))) void bf16(size_t rounds) {
    Floats sum[kAccumulators];
    Words x = bytes_of(0x3f), y = bytes_of(0x3f);
#pragma GCC unroll 12
    for (size_t i = 0; i < kAccumulators; ++i) sum[i] = floats(static_cast<float>(i));
    touch(x), touch(y);
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (size_t i = 0; i < kAccumulators; ++i) {
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)y);
            touch(sum[i]);
        }
}
constexpr Loop kBF16 = {bf16, kAccumulators * sizeof(Floats) / 2 * 2};

#else

constexpr Loop kBF16 = {nullptr, 0};

#endif

#if defined(__AVX512VNNI__)

void int8(size_t rounds) {
    Words sum[kAccumulators], code = bytes_of(3), x = bytes_of(2);
#pragma GCC unroll 12
    for (size_t i = 0; i < kAccumulators; ++i) sum[i] = none();
    touch(code), touch(x);
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (size_t i = 0; i < kAccumulators; ++i) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], code, x);
            touch(sum[i]);
        }
}
constexpr Loop kInt8 = {int8, kAccumulators * sizeof(Words) * 2};
constexpr Loop kInt4 = kInt8, kInt5 = kInt8, kInt6 = kInt8;

#elif defined(__AVX2__)

constexpr size_t kChains = 4;            // sums that do not wait for each other

// Products of pairs are added up in 16 bits as long as they fit, `kDots` of them, then widened.
template <size_t kDots>
void integers(size_t rounds) {
    const Words one = _mm256_set1_epi16(1);
    Words sum[kChains], code = bytes_of(3), x = bytes_of(2);
    for (size_t i = 0; i < kChains; ++i) sum[i] = none();
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 4
        for (size_t i = 0; i < kChains; ++i) {
            touch(x);
            Words narrow = _mm256_maddubs_epi16(code, x);
#pragma GCC unroll 8
            for (size_t dot = 1; dot < kDots; ++dot) {
                touch(x);
                narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(code, x));
            }
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(narrow, one));
            touch(sum[i]);
        }
}
template <size_t kDots>
constexpr Loop kIntegers = {integers<kDots>, kChains * kDots * sizeof(Words) * 2};
constexpr Loop kInt4 = kIntegers<8>, kInt5 = kIntegers<4>, kInt6 = kIntegers<2>, kInt8 = kIntegers<1>;

#endif

}  // namespace

extern const RooflineKernels kRoofline;
const RooflineKernels kRoofline = {read, {clock, 64}, kF32, kBF16, kInt4, kInt5, kInt6, kInt8};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
