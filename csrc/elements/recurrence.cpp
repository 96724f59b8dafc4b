// Recurrent layers: a short convolution, and the gated delta rule. One part of one row of a step per call, its tokens in order.
//
// A channel, and a column of a head's state, is computed by itself, and its sums have an order that depends on sizes of the model alone. What
// a row keeps stands in fp32 behind each token. So no bit depends on how a sequence is cut into steps, on company or threads.
#include <math.h>

#include <algorithm>

#include "elements/each.h"
#include "elements/recurrence.h"
#include "runtime/rows.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr float kNormEps = 1e-6f;
constexpr size_t kTurn = 16;             // tokens whose keys are normalised before columns are walked: those of a turn stay in the first cache
// Vectors of columns that are walked together: as many sums as hide each other's latency, of what fits the registers and, for the keys of
// heads of 128, the first cache.
constexpr size_t kTogether = sizeof(Part) == sizeof(Vec) ? 4 : 2;

// Tokens of a row in the step: the number of the first, how many, the first one's position.
struct RowTokens {
    size_t first, count, start;
};
inline RowTokens tokens_of(const Step& step, size_t row) {
    const size_t first = static_cast<size_t>(step.cu_q[row]), count = static_cast<size_t>(step.cu_q[row + 1]) - first;
    return {first, count, static_cast<size_t>(step.kv_len[row]) - count};
}

// One token as all columns of a head see it: the state before it, and where the one behind it goes, which may be the same place.
struct DeltaToken {
    float q[kMostKeyDim], k[kMostKeyDim];
    float decay, share;
    const float *v, *from;
    float *to, *out;
};

// out = x / |x| * by
inline void unit(const float* x, size_t width, float by, float* out) {
    Vec squares = zero();
    each(width, [&](size_t i, size_t n) { const Vec v = take(x + i, n); squares = fma(v, v, squares); });
    const Vec factor = all(by / sqrtf(sum_of(squares) + kNormEps));
    each(width, [&](size_t i, size_t n) { put(out + i, take(x + i, n) * factor, n); });
}

inline float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(x)))); }

// e^(a softplus x), rounded once: a state is multiplied with it again and again.
inline float decay_of(double x, float a) {
    const double softplus = (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x)));
    return static_cast<float>(exp(static_cast<double>(a) * softplus));
}

// A token for kVecs * 16 columns of a state [key_dim, columns], or the `lanes` that are left of 16. Sums over keys are two, of even and of
// odd ones, each ascending.
template <size_t kVecs, bool kWhole>
inline void walk(const DeltaToken& token, size_t key_dim, size_t columns, size_t column, size_t lanes) {
    const size_t n = kWhole ? kLanes : lanes;
    const float* from = token.from + column;
    Vec even[kVecs], odd[kVecs], change[kVecs], out[kVecs];
    RIDGELINE_UNROLL
    for (size_t j = 0; j < kVecs; ++j) even[j] = odd[j] = out[j] = zero();
    const auto add = [&](Vec* sums, size_t key) {
        const Vec k = all(token.k[key]);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kVecs; ++j) sums[j] = fma(k, take(from + key * columns + j * kLanes, n), sums[j]);
    };
    size_t key = 0;
    for (; key + 2 <= key_dim; key += 2) add(even, key), add(odd, key + 1);
    if (key < key_dim) add(even, key);
    const Vec decay = all(token.decay), share = all(token.share);
    RIDGELINE_UNROLL
    for (size_t j = 0; j < kVecs; ++j) change[j] = (take(token.v + column + j * kLanes, n) - (even[j] + odd[j]) * decay) * share;
    float* to = token.to + column;
    for (key = 0; key < key_dim; ++key, from += columns, to += columns) {
        const Vec k = all(token.k[key]), q = all(token.q[key]);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kVecs; ++j) {
            const Vec next = fma(k, change[j], take(from + j * kLanes, n) * decay);
            put(to + j * kLanes, next, n);
            out[j] = fma(q, next, out[j]);
        }
    }
    RIDGELINE_UNROLL
    for (size_t j = 0; j < kVecs; ++j) put(token.out + column + j * kLanes, out[j], n);
}

// Tokens one after the other, for some columns at a time: their part of the state stays near.
inline void walk_all(const DeltaToken* tokens, size_t count, size_t key_dim, size_t columns) {
    size_t column = 0;
    for (; column + kTogether * kLanes <= columns; column += kTogether * kLanes)
        for (size_t i = 0; i < count; ++i) walk<kTogether, true>(tokens[i], key_dim, columns, column, kLanes);
    for (; column + kLanes <= columns; column += kLanes)
        for (size_t i = 0; i < count; ++i) walk<1, true>(tokens[i], key_dim, columns, column, kLanes);
    for (size_t i = 0; i < count && column < columns; ++i) walk<1, false>(tokens[i], key_dim, columns, column, columns - column);
}

}  // namespace

void take_heads(const TakeHeads& op, const Step&, size_t row) {
    const size_t held = op.columns / op.parts, width = op.width / op.parts;
    for (size_t head = row * op.parts; head < (row + 1) * op.parts; ++head)
        memcpy(op.out + head * width, op.x + head * held + op.first, width * sizeof(float));
}

void short_conv(const ShortConv& op, const Step& step, size_t row, size_t part) {
    const RowTokens own = tokens_of(step, row);
    const size_t from = part * kConvChannels, channels = std::min(kConvChannels, op.width - from);
    float* tail = op.tail + static_cast<size_t>(step.state_rows[row]) * op.ring * op.width + from;
    const float *x = op.x + own.first * op.width + from, *filters = op.filters + from;
    float* out = op.out + own.first * op.width + from;
    const float* inputs[kMostTaps];
    for (size_t token = 0; token < own.count; ++token, out += op.width) {
        const size_t behind = own.start + token + 1, absent = op.taps - std::min(op.taps, behind);  // taps before position 0
        for (size_t tap = absent; tap < op.taps; ++tap) {
            const size_t position = behind - op.taps + tap;
            inputs[tap] = position < own.start ? tail + position % op.ring * op.width : x + (position - own.start) * op.width;
        }
        each(channels, [&](size_t i, size_t n) {
            Vec sum = zero();
            for (size_t tap = absent; tap < op.taps; ++tap) sum = fma(take(filters + tap * op.width + i, n), take(inputs[tap] + i, n), sum);
            put(out + i, silu(sum), n);
        });
    }
    for (size_t token = own.count - std::min(own.count, op.ring); token < own.count; ++token)
        memcpy(tail + (own.start + token) % op.ring * op.width, x + token * op.width, channels * sizeof(float));
}

void gated_delta(const GatedDelta& op, const Step& step, size_t row, size_t head) {
    const RowTokens own = tokens_of(step, row);
    const size_t dk = op.key_dim, dv = op.width / op.parts, keys = op.key_heads * dk, key_head = head / (op.parts / op.key_heads);
    const auto state_of = [&](size_t position) {
        const size_t place = static_cast<size_t>(step.state_rows[row]) * op.positions + position % op.positions;
        return op.state + (place * op.parts + head) * dk * dv;
    };
    float* state = state_of(own.start == 0 ? 0 : own.start - 1);
    if (own.start == 0) memset(state, 0, dk * dv * sizeof(float));
    const float scale = 1.0f / sqrtf(static_cast<float>(dk));
    DeltaToken tokens[kTurn];
    for (size_t done = 0; done < own.count; done += kTurn) {
        const size_t count = std::min(kTurn, own.count - done);
        for (size_t i = 0; i < count; ++i) {
            const size_t place = done + i, number = own.first + place, gate = number * op.parts + head;
            const float* x = op.x + number * op.columns;
            DeltaToken& token = tokens[i];
            unit(x + key_head * dk, dk, scale, token.q);
            unit(x + keys + key_head * dk, dk, 1.0f, token.k);
            token.v = x + 2 * keys + head * dv;
            token.share = sigmoid(op.beta[gate]);
            token.decay = decay_of(static_cast<double>(op.alpha[gate]) + static_cast<double>(op.dt[head]), op.a[head]);
            token.from = state;
            // States that nobody goes back to are changed in place: where one is, a later one of the step goes.
            if (place + op.positions >= own.count) state = state_of(own.start + place);
            token.to = state;
            token.out = op.out + number * op.width + head * dv;
        }
        walk_all(tokens, count, dk, dv);
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
