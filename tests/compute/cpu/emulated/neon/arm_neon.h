// NEON in plain C++: the instructions that the neon level uses, so that the whole suite compares its bits on other machines.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

// Whatever sources include that has assembly of its own: see the end.
#include <immintrin.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#define EMULATED_TYPE(name, T, bytes) typedef T name __attribute__((vector_size(bytes)));
EMULATED_TYPE(float32x2_t, float, 8)
EMULATED_TYPE(float32x4_t, float, 16)
EMULATED_TYPE(int8x8_t, int8_t, 8)
EMULATED_TYPE(int8x16_t, int8_t, 16)
EMULATED_TYPE(uint8x8_t, uint8_t, 8)
EMULATED_TYPE(uint8x16_t, uint8_t, 16)
EMULATED_TYPE(int16x4_t, int16_t, 8)
EMULATED_TYPE(int16x8_t, int16_t, 16)
EMULATED_TYPE(uint16x4_t, uint16_t, 8)
EMULATED_TYPE(uint16x8_t, uint16_t, 16)
EMULATED_TYPE(int32x4_t, int32_t, 16)
EMULATED_TYPE(uint32x2_t, uint32_t, 8)
EMULATED_TYPE(uint32x4_t, uint32_t, 16)
EMULATED_TYPE(uint64x2_t, uint64_t, 16)
#undef EMULATED_TYPE
struct float16x4_t { uint16_t v[4]; };

namespace {
namespace emulated {

template <class To, class From>
inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    memcpy(&r, &x, sizeof r);
    return r;
}
template <class V>
constexpr int kCount = sizeof(V) / sizeof(std::declval<V&>()[0]);
template <class V, class Each>
inline V each(const Each& f) {
    V r = {};
    for (int i = 0; i < kCount<V>; ++i) r[i] = static_cast<decltype(r[0] + 0)>(f(i));
    return r;
}
template <class V, class T>
inline V load(const T* p) {
    V r;
    memcpy(&r, p, sizeof r);
    return r;
}
template <class V, class T>
inline void store(T* p, V x) { memcpy(p, &x, sizeof x); }

inline float widened(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023, sign = static_cast<uint32_t>(half >> 15) << 31;
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    if (exponent == 0) return sign ? -tiny : tiny;
    return bits<float>(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13);
}
inline int32_t whole(float x) { return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : static_cast<int32_t>(nearbyintf(x)); }

}  // namespace emulated

// name(lanes of x and y): an expression of i, the lane.
#define EMULATED_ONE(name, To, From, expression) inline To name(From x) { return emulated::each<To>([&](int i) { return expression; }); }
#define EMULATED_TWO(name, To, From, expression) inline To name(From x, From y) { return emulated::each<To>([&](int i) { return expression; }); }
#define EMULATED_CAST(name, To, From) inline To name(From x) { return emulated::bits<To>(x); }
#define EMULATED_HALVES(type, T, Half, Whole)                                                                           \
    inline Half vget_low_##type(Whole x) { return emulated::each<Half>([&](int i) { return x[i]; }); }                  \
    inline Half vget_high_##type(Whole x) { return emulated::each<Half>([&](int i) { return x[i + emulated::kCount<Half>]; }); }
#define EMULATED_MEMORY(type, T, V)                                                     \
    inline V vld1q_##type(const T* p) { return emulated::load<V>(p); }                  \
    inline void vst1q_##type(T* p, V x) { emulated::store(p, x); }                      \
    inline V vdupq_n_##type(T x) { return emulated::each<V>([&](int) { return x; }); }

EMULATED_MEMORY(f32, float, float32x4_t)
EMULATED_MEMORY(s8, int8_t, int8x16_t)
EMULATED_MEMORY(u8, uint8_t, uint8x16_t)
EMULATED_MEMORY(s32, int32_t, int32x4_t)
EMULATED_MEMORY(u32, uint32_t, uint32x4_t)
inline uint16x4_t vld1_u16(const uint16_t* p) { return emulated::load<uint16x4_t>(p); }
inline uint32x2_t vdup_n_u32(uint32_t x) { return uint32x2_t{x, x}; }

EMULATED_HALVES(f32, float, float32x2_t, float32x4_t)
EMULATED_HALVES(s8, int8_t, int8x8_t, int8x16_t)
EMULATED_HALVES(u8, uint8_t, uint8x8_t, uint8x16_t)
EMULATED_HALVES(s16, int16_t, int16x4_t, int16x8_t)
EMULATED_HALVES(u16, uint16_t, uint16x4_t, uint16x8_t)
inline int16x8_t vcombine_s16(int16x4_t x, int16x4_t y) { return emulated::each<int16x8_t>([&](int i) { return i < 4 ? x[i] : y[i - 4]; }); }
inline int8x16_t vcombine_s8(int8x8_t x, int8x8_t y) { return emulated::each<int8x16_t>([&](int i) { return i < 8 ? x[i] : y[i - 8]; }); }

EMULATED_TWO(vadd_f32, float32x2_t, float32x2_t, x[i] + y[i])
EMULATED_TWO(vaddq_f32, float32x4_t, float32x4_t, x[i] + y[i])
EMULATED_TWO(vsubq_f32, float32x4_t, float32x4_t, x[i] - y[i])
EMULATED_TWO(vmulq_f32, float32x4_t, float32x4_t, x[i] * y[i])
EMULATED_TWO(vdivq_f32, float32x4_t, float32x4_t, x[i] / y[i])
EMULATED_ONE(vabsq_f32, float32x4_t, float32x4_t, fabsf(x[i]))
EMULATED_ONE(vrndnq_f32, float32x4_t, float32x4_t, nearbyintf(x[i]))
EMULATED_TWO(vcgtq_f32, uint32x4_t, float32x4_t, x[i] > y[i] ? UINT32_MAX : 0)
EMULATED_TWO(vcltq_f32, uint32x4_t, float32x4_t, x[i] < y[i] ? UINT32_MAX : 0)
EMULATED_TWO(vceqq_f32, uint32x4_t, float32x4_t, x[i] == y[i] ? UINT32_MAX : 0)
EMULATED_TWO(vtstq_u32, uint32x4_t, uint32x4_t, x[i] & y[i] ? UINT32_MAX : 0)
inline float32x4_t vfmaq_f32(float32x4_t z, float32x4_t x, float32x4_t y) {
    return emulated::each<float32x4_t>([&](int i) { return fmaf(x[i], y[i], z[i]); });
}
inline float32x4_t vbslq_f32(uint32x4_t mask, float32x4_t yes, float32x4_t no) {
    return emulated::each<float32x4_t>([&](int i) { return mask[i] ? yes[i] : no[i]; });
}
inline float32x4_t vextq_f32(float32x4_t x, float32x4_t y, int first) {
    return emulated::each<float32x4_t>([&](int i) { return i + first < 4 ? x[i + first] : y[i + first - 4]; });
}
inline float vget_lane_f32(float32x2_t x, int lane) { return x[lane]; }
inline float vgetq_lane_f32(float32x4_t x, int lane) { return x[lane]; }

EMULATED_TWO(vaddq_s32, int32x4_t, int32x4_t, static_cast<uint32_t>(x[i]) + static_cast<uint32_t>(y[i]))
EMULATED_TWO(vsubq_s32, int32x4_t, int32x4_t, static_cast<uint32_t>(x[i]) - static_cast<uint32_t>(y[i]))
EMULATED_TWO(vmulq_s32, int32x4_t, int32x4_t, static_cast<uint32_t>(x[i]) * static_cast<uint32_t>(y[i]))
EMULATED_TWO(vmaxq_s32, int32x4_t, int32x4_t, x[i] > y[i] ? x[i] : y[i])
EMULATED_TWO(vandq_u8, uint8x16_t, uint8x16_t, x[i] & y[i])
EMULATED_TWO(vorrq_u8, uint8x16_t, uint8x16_t, x[i] | y[i])
EMULATED_TWO(veorq_u8, uint8x16_t, uint8x16_t, x[i] ^ y[i])
EMULATED_TWO(vqtbl1q_u8, uint8x16_t, uint8x16_t, y[i] < 16 ? x[y[i]] : 0)
EMULATED_TWO(vmull_u32, uint64x2_t, uint32x2_t, static_cast<uint64_t>(x[i]) * y[i])
EMULATED_TWO(vshlq_s32, int32x4_t, int32x4_t, static_cast<uint32_t>(x[i]) << y[i])      // to the left only
inline int32x4_t vshlq_n_s32(int32x4_t x, int n) { return emulated::each<int32x4_t>([&](int i) { return static_cast<uint32_t>(x[i]) << n; }); }
inline uint8x16_t vshrq_n_u8(uint8x16_t x, int n) { return emulated::each<uint8x16_t>([&](int i) { return x[i] >> n; }); }
inline uint32x4_t vshll_n_u16(uint16x4_t x, int n) { return emulated::each<uint32x4_t>([&](int i) { return static_cast<uint32_t>(x[i]) << n; }); }
inline int32x4_t vdotq_s32(int32x4_t sum, int8x16_t x, int8x16_t y) {
    return emulated::each<int32x4_t>([&](int i) {
        uint32_t r = static_cast<uint32_t>(sum[i]);
        for (int j = 4 * i; j < 4 * i + 4; ++j) r += static_cast<uint32_t>(x[j] * y[j]);
        return r;
    });
}
inline int16_t vaddlvq_s8(int8x16_t x) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) sum += x[i];
    return static_cast<int16_t>(sum);
}

EMULATED_ONE(vmovl_s8, int16x8_t, int8x8_t, x[i])
EMULATED_ONE(vmovl_u8, uint16x8_t, uint8x8_t, x[i])
EMULATED_ONE(vmovl_s16, int32x4_t, int16x4_t, x[i])
EMULATED_ONE(vmovl_u16, uint32x4_t, uint16x4_t, x[i])
EMULATED_ONE(vmovn_s32, int16x4_t, int32x4_t, x[i])
EMULATED_ONE(vmovn_s16, int8x8_t, int16x8_t, x[i])
EMULATED_ONE(vmovn_u64, uint32x2_t, uint64x2_t, x[i])
EMULATED_ONE(vcvtnq_s32_f32, int32x4_t, float32x4_t, emulated::whole(x[i]))
EMULATED_ONE(vcvtq_f32_s32, float32x4_t, int32x4_t, x[i])
EMULATED_ONE(vcvt_f32_f16, float32x4_t, float16x4_t, emulated::widened(x.v[i]))

EMULATED_CAST(vreinterpret_f16_u16, float16x4_t, uint16x4_t)
EMULATED_CAST(vreinterpret_s8_u32, int8x8_t, uint32x2_t)
EMULATED_CAST(vreinterpretq_f32_s32, float32x4_t, int32x4_t)
EMULATED_CAST(vreinterpretq_f32_u32, float32x4_t, uint32x4_t)
EMULATED_CAST(vreinterpretq_s32_u32, int32x4_t, uint32x4_t)
EMULATED_CAST(vreinterpretq_s8_u32, int8x16_t, uint32x4_t)
EMULATED_CAST(vreinterpretq_s8_u8, int8x16_t, uint8x16_t)

#undef EMULATED_ONE
#undef EMULATED_TWO
#undef EMULATED_CAST
#undef EMULATED_HALVES
#undef EMULATED_MEMORY

}  // namespace

// What keeps a value in a register names registers of another processor.
#define __asm__(...) static_cast<void>(0)
#define asm
#define volatile(...) static_cast<void>(0)
