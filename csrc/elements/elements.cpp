// Norms, residuals, activations, rotation and the quantisation of activations: one token a call.
//
// A sum over a row has an order that is a function of the row's width alone: sixteen partial sums, then a fixed tree.
#include "elements/elements.h"

#include <math.h>

#include "linear/linear.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// Below this a group is zero: 127 / amax would overflow.
constexpr float kTiny = 1e-36f;

// f(start, lanes) over a row; the last call may have fewer than sixteen lanes.
template <typename F>
inline void each(size_t width, F f) {
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes) f(i, kLanes);
    if (i < width) f(i, width - i);
}
inline Vec take(const float* p, size_t n) { return n == kLanes ? load(p) : load_first(p, n); }
inline void put(float* p, Vec x, size_t n) { n == kLanes ? store(p, x) : store_first(p, x, n); }

// One group, a multiple of kCodeGroup inputs; its scale stands once for each kCodeGroup.
__attribute__((always_inline)) inline void quantise_group(const float* x, size_t group, int8_t* codes, float* scales, int32_t* sums) {
    const Vec first = load(x);
    Vec test = first - first, most = magnitude(first);  // x - x is NaN where x is not finite, else 0
    for (size_t i = kLanes; i < group; i += kLanes) {
        const Vec next = load(x + i);
        test = test + (next - next);
        most = larger(most, magnitude(next));
    }
    const float amax = largest_of(most);
    const bool finite = sum_of(test) == 0.0f, live = finite && amax >= kTiny;
    const float scale = !finite ? NAN : live ? amax / 127.0f : 0.0f;
    for (size_t i = 0; i < group / kCodeGroup; ++i) scales[i] = scale;
    if (!live) {
        memset(codes, 0, group);
        memset(sums, 0, group / kLanes * sizeof *sums);
        return;
    }
    const Vec inverse = all(127.0f / amax);
    for (size_t i = 0; i < group; i += kLanes) sums[i / kLanes] = store_int8(codes + i, load(x + i) * inverse);
}

void quantise(const float* x, size_t k, size_t group, int8_t* codes, float* scales, int32_t* sums) {
    const auto groups_of = [=](size_t width) __attribute__((always_inline)) {
        for (size_t i = 0; i < k; i += width) quantise_group(x + i, width, codes + i, scales + i / kCodeGroup, sums + i / kLanes);
    };
    if (group == kCodeGroup) return groups_of(kCodeGroup);  // unrolled
    groups_of(group);
}

void rms_norm(const float* x, const float* weight, size_t width, size_t piece, float eps, float* out) {
    for (size_t start = 0; start < width; start += piece) {
        Vec squares = zero();
        each(piece, [&](size_t i, size_t n) { const Vec v = take(x + start + i, n); squares = fma(v, v, squares); });
        const Vec root = all(sqrtf(sum_of(squares) / static_cast<float>(piece) + eps));
        each(piece, [&](size_t i, size_t n) { put(out + start + i, take(x + start + i, n) / root * take(weight + i, n), n); });
    }
}

void layer_norm(const float* x, const float* weight, const float* bias, size_t width, float eps, float* out) {
    const float count = static_cast<float>(width);
    Vec total = zero(), squares = zero();
    each(width, [&](size_t i, size_t n) { total = total + take(x + i, n); });
    const float mean = sum_of(total) / count;
    each(width, [&](size_t i, size_t n) { const Vec v = (n == kLanes ? load(x + i) : load_first(x + i, n, mean)) - all(mean); squares = fma(v, v, squares); });
    const Vec root = all(sqrtf(sum_of(squares) / count + eps));
    each(width, [&](size_t i, size_t n) { put(out + i, (take(x + i, n) - all(mean)) / root * take(weight + i, n) + take(bias + i, n), n); });
}

void add(const float* x, const float* y, size_t width, float* out) {
    each(width, [&](size_t i, size_t n) { put(out + i, take(x + i, n) + take(y + i, n), n); });
}

void reorder(const float* x, const int32_t* order, size_t width, float* out) {
    for (size_t i = 0; i < width; ++i) out[i] = x[order[i]];
}

void scale(const float* x, float factor, size_t width, float* out) {
    each(width, [&](size_t i, size_t n) { put(out + i, take(x + i, n) * all(factor), n); });
}

void softcap(const float* x, float cap, size_t width, float* out) {
    each(width, [&](size_t i, size_t n) { put(out + i, hyperbolic_tangent(take(x + i, n) / all(cap)) * all(cap), n); });
}

inline Vec silu(Vec x) { return x / (all(1.0f) + exponential(zero() - x)); }

// (1 + tanh u) / 2 = 1 / (1 + e^(-2 u))
inline Vec gelu_tanh(Vec x) {
    const Vec inner = fma(x * x, all(0.044715f), all(1.0f)) * x * all(-2.0f * 0.7978845608f);
    return x / (all(1.0f) + exponential(inner));
}

template <typename F>
inline void activated(F f, const float* x, const float* y, size_t width, float* out) {
    if (y == nullptr)
        each(width, [&](size_t i, size_t n) { put(out + i, f(take(x + i, n)), n); });
    else
        each(width, [&](size_t i, size_t n) { put(out + i, f(take(x + i, n)) * take(y + i, n), n); });
}

void activate(int activation, const float* x, const float* y, size_t width, float* out) {
    if (activation == kSilu)
        activated([](Vec v) { return silu(v); }, x, y, width, out);
    else
        activated([](Vec v) { return gelu_tanh(v); }, x, y, width, out);
}

void rotation(int32_t position, const double* frequencies, size_t half, float factor, float* turn) {
    for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequencies[i];
        turn[i] = static_cast<float>(cos(angle) * static_cast<double>(factor));
        turn[half + i] = static_cast<float>(sin(angle) * static_cast<double>(factor));
    }
}

void rope(const float* x, const float* turn, size_t width, size_t head_dim, size_t half, float* out) {
    for (size_t head = 0; head < width; head += head_dim) {
        each(half, [&](size_t i, size_t n) {
            const Vec first = take(x + head + i, n), second = take(x + head + half + i, n);
            const Vec cosine = take(turn + i, n), sine = take(turn + half + i, n);
            put(out + head + i, first * cosine - second * sine, n);
            put(out + head + half + i, second * cosine + first * sine, n);
        });
        if (out != x && 2 * half < head_dim) memcpy(out + head + 2 * half, x + head + 2 * half, (head_dim - 2 * half) * sizeof(float));
    }
}

}  // namespace

extern const ElementKernels kElements;
const ElementKernels kElements = {quantise, rms_norm, layer_norm, add, reorder, scale, softcap, activate, rotation, rope};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
