// Linear layer over Q8_0 weights: activations are quantised to int8 in groups of 32, dots inside a group are integers.
//
// Integers are exact and the fp32 part is written in one order, so every level gives the same bits.
// C headers only: an inline function of the C++ library, compiled with this level's flags, could be the copy that the
// linker keeps for every level.
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// Below this a group is zero: 127 / amax would overflow.
constexpr float kTiny = 1e-36f;

float half_to_float(const std::uint8_t* bytes) {
    std::uint16_t half;
    memcpy(&half, bytes, 2);
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
        const float value = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -value : value;
    }
    const std::uint32_t widened = exponent == 31 ? 255u : exponent + 112u;
    const std::uint32_t bits = sign | (widened << 23) | (mantissa << 13);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

#if defined(__AVX2__)

// |w| is an unsigned operand and x takes w's sign; pairs stay below 2 * 128 * 127 < 2^15.
std::int32_t dot(const std::uint8_t* weights, const std::int8_t* codes) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i magnitude = _mm256_abs_epi8(w), signed_x = _mm256_sign_epi8(x, w);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), magnitude, signed_x);
#else
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed_x), _mm256_set1_epi16(1));
#endif
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

#else

std::int32_t dot(const std::uint8_t* weights, const std::int8_t* codes) {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < kGroup; ++i) sum += static_cast<std::int8_t>(weights[i]) * codes[i];
    return sum;
}

#endif

void quantise_group(const float* x, std::int8_t* codes, float* scale) {
    float amax = 0.0f;
    bool finite = true;
    for (std::size_t i = 0; i < kGroup; ++i) {
        const float magnitude = fabsf(x[i]);
        finite &= magnitude <= FLT_MAX;
        amax = magnitude > amax ? magnitude : amax;
    }
    if (!finite || amax < kTiny) {
        memset(codes, 0, kGroup);
        *scale = finite ? 0.0f : NAN;
        return;
    }
    const float inverse = 127.0f / amax;
    for (std::size_t i = 0; i < kGroup; ++i) codes[i] = static_cast<std::int8_t>(nearbyintf(x[i] * inverse));
    *scale = amax / 127.0f;
}

void quantise(const float* x, std::int8_t* codes, float* scales, std::size_t rows, std::size_t k) {
    const std::size_t groups = rows * (k / kGroup);
    for (std::size_t g = 0; g < groups; ++g) quantise_group(x + g * kGroup, codes + g * kGroup, scales + g);
}

void q8_0_linear(const std::uint8_t* weights, std::size_t weight_stride, const std::int8_t* codes, const float* scales,
                 float* out, std::size_t m, std::size_t n, std::size_t k) {
    const std::size_t groups = k / kGroup;
    for (std::size_t j = 0; j < n; ++j) {
        const std::uint8_t* row = weights + j * weight_stride;
        for (std::size_t i = 0; i < m; ++i) {
            float sum = 0.0f;
            for (std::size_t g = 0; g < groups; ++g) {
                const std::uint8_t* block = row + g * kQ8_0Bytes;
                const float scale = half_to_float(block) * scales[i * groups + g];
                sum += static_cast<float>(dot(block + 2, codes + i * k + g * kGroup)) * scale;
            }
            out[i * n + j] = sum;
        }
    }
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {quantise, q8_0_linear};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
