// Weights of tokens, e^((logit - highest) / temperature), and their sums.
#include <math.h>
#include <string.h>

#include "sample/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// e^x for -708 ≤ x ≤ 0 within 2 units in the last place: 2^n times Taylor's polynomial of what is left. Without branches, so that it is
// vectorised; so is the next.
inline double exponential_of(double x) {
    constexpr double kShift = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
    const double shifted = multiply_add(x, 1.4426950408889634, kShift), n = shifted - kShift;
    const double r = multiply_add(n, -0x1.a39ef35793c76p-33, multiply_add(n, -0x1.62e42fee00000p-1, x)), r2 = r * r;
    double even = 1.0 / 479001600, odd = 1.0 / 6227020800;
    even = multiply_add(even, r2, 1.0 / 3628800), odd = multiply_add(odd, r2, 1.0 / 39916800);
    even = multiply_add(even, r2, 1.0 / 40320), odd = multiply_add(odd, r2, 1.0 / 362880);
    even = multiply_add(even, r2, 1.0 / 720), odd = multiply_add(odd, r2, 1.0 / 5040);
    even = multiply_add(even, r2, 1.0 / 24), odd = multiply_add(odd, r2, 1.0 / 120);
    even = multiply_add(even, r2, 1.0 / 2), odd = multiply_add(odd, r2, 1.0 / 6);
    const double power = __builtin_bit_cast(double, (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52);
    return multiply_add(multiply_add(odd, r2, 1.0), r, multiply_add(even, r2, 1.0)) * power;
}

// e^x for -87 ≤ x ≤ 0 within 2 units in the last place, with Cephes' polynomial.
inline float exponential_of(float x) {
    constexpr float kShift = 0x1.8p23f;
    const float shifted = multiply_add(x, 1.44269504f, kShift), n = shifted - kShift;
    const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = multiply_add(p, r, 1.3981999507e-3f);
    p = multiply_add(p, r, 8.3334519073e-3f);
    p = multiply_add(p, r, 4.1665795894e-2f);
    p = multiply_add(p, r, 1.6666665459e-1f);
    p = multiply_add(p, r, 5.0000001201e-1f);
    const float power = __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted) + 127) << 23);
    return multiply_add(p, r * r, r + 1.0f) * power;
}

// What weights in one type need of a scale. Multiplying by the inverse of a temperature instead of dividing moves a weight by its last bits.
// The difference is bounded, not the logit: beside a logit of 10^9 a bound some units below it rounds to the logit itself.
template <typename Real>
struct Weight {
    Weight(Scale scale, double lowest)
        : highest(static_cast<Real>(scale.highest)), inverse(static_cast<Real>(1.0 / scale.temperature)), lowest(static_cast<Real>(lowest)) {}

    Real operator()(float logit) const {
        const Real x = (static_cast<Real>(logit) - highest) * inverse;
        return exponential_of(x > lowest ? x : lowest);
    }

    Real highest, inverse, lowest;       // what is further below weighs what `lowest` does: nothing beside 1
};

const double kLowest = -708.0, kLowestFloat = -86.0;

// Sums in a fixed order.
template <typename Real>
double sum_of_weights(const BlockRow& row, Cut cut, const Weight<Real>& weight) {
    double sums[kLanes] = {};
    float memory[kBlock];
    for (size_t b = 0; b < row.count; ++b) {
        if (row.maxima[b] < cut.value || row.maxima[b] == -INFINITY) continue;
        const float* x = survivors(row, b, cut, memory);
        Real weights[kBlock];
        for (size_t i = 0; i < kBlock; ++i) weights[i] = weight(x[i]);
        double here[kLanes] = {};
        for (size_t i = 0; i < kBlock; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) here[lane] += static_cast<double>(weights[i + lane]);
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += here[lane];
    }
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

}  // namespace

void weigh(const float* x, Scale scale, double* weights) {
    const Weight<double> weight(scale, kLowest);
    for (size_t i = 0; i < kBlock; ++i) weights[i] = weight(x[i]);
}

double mass_of(const BlockRow& row, Cut cut, Scale scale) { return sum_of_weights(row, cut, Weight<double>(scale, kLowest)); }

// A weight of e^-s is wrong by 3 roundings of s and 4 of its own at most, and the mean of s over the mass is its entropy at most: log vocab.
double mass_nearly(const BlockRow& row, Cut cut, Scale scale, double* error) {
    *error = (3.0 * log(static_cast<double>(row.vocab)) + 8.0) * 0x1p-24;
    return sum_of_weights(row, cut, Weight<float>(scale, kLowestFloat));
}

double log_sum_exp(const BlockRow& row, float highest) {
    const Scale plain = {highest, 1.0};
    return log(sum_of_weights(row, {-INFINITY, INT32_MAX}, Weight<float>(plain, kLowestFloat)));
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
