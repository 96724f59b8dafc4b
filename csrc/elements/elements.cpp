// Norms, residuals, activations, rotation and the quantisation of activations: one row per call.
//
// A sum over a row has an order that is a function of the row's width alone: sixteen partial sums, then a fixed tree.
#include <math.h>

#include "elements/each.h"
#include "elements/quantise.h"
#include "runtime/rows.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// Below this a group is not stepped: a quarter of its scale would not be exact.
constexpr float kTinyStepped = 1e-34f;

// A group of kSteppedGroup inputs: by `quantise_group`, then those of kCodeGroup that are small once more, with a half or a quarter of its scale.
inline void quantise_stepped(const float* x, int8_t* codes, float* scales, int32_t* sums) {
    constexpr size_t kParts = kSteppedGroup / kCodeGroup, kSums = kCodeGroup / kLanes;
    float each[kParts], amax = 0.0f;
    quantise_group(x, kSteppedGroup, codes, scales, sums);
    for (size_t part = 0; part < kParts; ++part) {
        each[part] = largest_of(larger(magnitude(load(x + part * kCodeGroup)), magnitude(load(x + part * kCodeGroup + kLanes))));
        amax = each[part] > amax ? each[part] : amax;
    }
    if (!(amax >= kTinyStepped) || scales[0] != scales[0]) return;
    int halvings[kParts], most = 0;
    for (size_t part = 0; part < kParts; ++part) {
        halvings[part] = (each[part] <= amax / 2) + (each[part] <= amax / 4);
        most = halvings[part] > most ? halvings[part] : most;
    }
    for (size_t part = 0; part < kParts; ++part) {
        const float power = static_cast<float>(1 << halvings[part]);
        const Vec inverse = all(127.0f / amax * power);
        scales[part] = scales[part] / power;
        for (size_t i = 0; i < kSums; ++i) {
            const size_t place = part * kSums + i;
            if (halvings[part] > 0) sums[place] = store_int8(codes + place * kLanes, load(x + place * kLanes) * inverse);
            sums[place] *= 1 << (most - halvings[part]);
        }
    }
}

// (1 + tanh u) / 2 = 1 / (1 + e^(-2 u))
inline Vec gelu_tanh(Vec x) {
    const Vec inner = fma(x * x, all(0.044715f), all(1.0f)) * x * all(-2.0f * 0.7978845608f);
    return x / (all(1.0f) + exponential(inner));
}

// x Phi(x), where Phi(-|x|) = erfc(|x| / sqrt(2)) / 2. Abramowitz and Stegun 1964, 7.1.26: within 1.5e-7.
inline Vec gelu(Vec x) {
    const Vec z = magnitude(x) * all(0.70710678118f), t = all(1.0f) / fma(z, all(0.3275911f), all(1.0f));
    Vec p = all(0.5f * 1.061405429f);
    p = fma(p, t, all(0.5f * -1.453152027f));
    p = fma(p, t, all(0.5f * 1.421413741f));
    p = fma(p, t, all(0.5f * -0.284496736f));
    p = fma(p, t, all(0.5f * 0.254829592f));
    const Vec tail = p * t * exponential(zero() - z * z);
    return x * where_below(x, zero(), tail, all(1.0f) - tail);
}

// write(activation) with the activation as a function of vectors.
template <typename F>
inline void activated(int activation, F write) {
    if (activation == kSilu)
        write([](Vec v) { return silu(v); });
    else if (activation == kGelu)
        write([](Vec v) { return gelu(v); });
    else if (activation == kLogistic)
        write([](Vec v) { return all(1.0f) / (all(1.0f) + exponential(zero() - v)); });
    else
        write([](Vec v) { return gelu_tanh(v); });
}

}  // namespace

void select(const Select& op, const Step& step, size_t row) {
    memcpy(op.out + row * op.width, op.x + static_cast<size_t>(step.select[row]) * op.width, op.width * sizeof(float));
}

void reorder(const Reorder& op, const Step&, size_t row) {
    const float* x = op.x + row * op.width;
    float* out = op.out + row * op.width;
    for (size_t i = 0; i < op.width; ++i) out[i] = x[op.order[i]];
}

void split_heads(const SplitHeads& op, const Step&, size_t row) {
    const size_t width = op.plain + op.rotary, half = op.rotary / 2;
    for (size_t head = row * op.parts; head < (row + 1) * op.parts; ++head) {
        const float *x = op.x + head * width, *pairs = x + op.plain;
        float* rotary = op.out_rotary + head * op.rotary;
        memcpy(op.out_plain + head * op.plain, x, op.plain * sizeof(float));
        for (size_t i = 0; i < half; ++i) rotary[i] = pairs[2 * i], rotary[half + i] = pairs[2 * i + 1];
    }
}

void join_heads(const JoinHeads& op, const Step&, size_t row) {
    const size_t first = op.columns / op.parts, width = op.width / op.parts, second = width - first;
    for (size_t head = row * op.parts; head < (row + 1) * op.parts; ++head) {
        memcpy(op.out + head * width, op.x + head * first, first * sizeof(float));
        memcpy(op.out + head * width + first, op.y + head * second, second * sizeof(float));
    }
}

void quantise(const Quantise& op, const Step&, size_t row) {
    const size_t k = op.width;
    const float* x = op.x + row * k;
    int8_t* codes = op.out_codes + row * k;
    float* scales = op.out_scales + row * (k / kCodeGroup);
    int32_t* sums = op.out_sums + row * (k / kLanes);
    const auto groups_of = [=](size_t width) __attribute__((always_inline)) {
        for (size_t i = 0; i < k; i += width) quantise_group(x + i, width, codes + i, scales + i / kCodeGroup, sums + i / kLanes);
    };
    for (size_t i = 0; op.stepped && i < k; i += kSteppedGroup) quantise_stepped(x + i, codes + i, scales + i / kCodeGroup, sums + i / kLanes);
    if (op.stepped) return;
    if (op.group == kCodeGroup) return groups_of(kCodeGroup);  // unrolled
    groups_of(op.group);
}

void rms_norm(const RmsNorm& op, const Step&, size_t row) {
    const float *x = op.x + row * op.width, *weight = op.weight;
    float* out = op.out + row * op.width;
    for (size_t start = 0; start < op.width; start += op.norm_width) {
        Vec squares = zero();
        each(op.norm_width, [&](size_t i, size_t n) { const Vec v = take(x + start + i, n); squares = fma(v, v, squares); });
        const Vec root = all(sqrtf(sum_of(squares) / static_cast<float>(op.norm_width) + op.eps));
        each(op.norm_width, [&](size_t i, size_t n) { put(out + start + i, take(x + start + i, n) / root * take(weight + i, n), n); });
    }
}

void layer_norm(const LayerNorm& op, const Step&, size_t row) {
    const float *x = op.x + row * op.width, *weight = op.weight, *bias = op.bias, count = static_cast<float>(op.width);
    float* out = op.out + row * op.width;
    Vec total = zero(), squares = zero();
    each(op.width, [&](size_t i, size_t n) { total = total + take(x + i, n); });
    const float mean = sum_of(total) / count;
    each(op.width, [&](size_t i, size_t n) { const Vec v = (n == kLanes ? load(x + i) : load_first(x + i, n, mean)) - all(mean); squares = fma(v, v, squares); });
    const Vec root = all(sqrtf(sum_of(squares) / count + op.eps));
    each(op.width, [&](size_t i, size_t n) { put(out + i, (take(x + i, n) - all(mean)) / root * take(weight + i, n) + take(bias + i, n), n); });
}

void add(const Add& op, const Step&, size_t row) {
    const float *x = op.x + row * op.width, *y = op.y + row * op.width;
    float* out = op.out + row * op.width;
    each(op.width, [&](size_t i, size_t n) { put(out + i, take(x + i, n) + take(y + i, n), n); });
}

void add_bias(const AddBias& op, const Step&, size_t row) {
    const float* x = op.x + row * op.width;
    float* out = op.out + row * op.width;
    each(op.width, [&](size_t i, size_t n) { put(out + i, take(x + i, n) + take(op.bias + i, n), n); });
}

void scale(const Scale& op, const Step&, size_t row) {
    const float* x = op.x + row * op.width;
    float* out = op.out + row * op.width;
    each(op.width, [&](size_t i, size_t n) { put(out + i, take(x + i, n) * all(op.factor), n); });
}

void softcap(const Softcap& op, const Step&, size_t row) {
    const float* x = op.x + row * op.width;
    float* out = op.out + row * op.width;
    each(op.width, [&](size_t i, size_t n) { put(out + i, hyperbolic_tangent(take(x + i, n) / all(op.cap)) * all(op.cap), n); });
}

void activate(const Activate& op, const Step&, size_t row) {
    const float* x = op.x + row * op.width;
    float* out = op.out + row * op.width;
    activated(op.activation, [&](auto f) { each(op.width, [&](size_t i, size_t n) { put(out + i, f(take(x + i, n)), n); }); });
}

void glu(const Glu& op, const Step&, size_t row) {
    const float *gate = op.gate + row * op.width, *up = op.up + row * op.width;
    float* out = op.out + row * op.width;
    if (op.activation == kClampedSwish) {
        const Vec limit = all(7.0f), one = all(1.0f);
        return each(op.width, [&](size_t i, size_t n) {
            // Of a NaN the second operand would be taken.
            const Vec x = smaller(limit, take(gate + i, n)), y = larger(all(-7.0f), smaller(limit, take(up + i, n)));
            put(out + i, x / (one + exponential(x * all(-1.702f))) * (y + one), n);
        });
    }
    activated(op.activation, [&](auto f) { each(op.width, [&](size_t i, size_t n) { put(out + i, f(take(gate + i, n)) * take(up + i, n), n); }); });
}

void rotation(const Rotation& op, const Step& step, size_t row) {
    float* turn = op.out + row * 2 * op.half;
    for (size_t i = 0; i < op.half; ++i) {
        const double angle = static_cast<double>(step.positions[row]) * op.frequencies[i];
        turn[i] = static_cast<float>(cos(angle) * static_cast<double>(op.rope_scale));
        turn[op.half + i] = static_cast<float>(sin(angle) * static_cast<double>(op.rope_scale));
    }
}

void rotate(const Rotate& op, const Step&, size_t row) {
    const float *x = op.x + row * op.width, *turn = op.turn + row * 2 * op.half;
    const size_t half = op.half, rotated = 2 * half;
    float* out = op.out + row * op.width;
    for (size_t head = 0; head < op.width; head += op.head_dim) {
        each(half, [&](size_t i, size_t n) {
            const Vec first = take(x + head + i, n), second = take(x + head + half + i, n);
            const Vec cosine = take(turn + i, n), sine = take(turn + half + i, n);
            put(out + head + i, first * cosine - second * sine, n);
            put(out + head + half + i, second * cosine + first * sine, n);
        });
        if (out != x && rotated < op.head_dim) memcpy(out + head + rotated, x + head + rotated, (op.head_dim - rotated) * sizeof(float));
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
