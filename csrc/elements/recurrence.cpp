// Recurrent layers: a short convolution, and the gated delta rule. One part of one row of a step per call, its tokens in order.
//
// A channel, and a column of a head's state, is computed by itself, and its sums have an order that depends on sizes of the model alone. What
// a row keeps stands in fp32 behind each token. So no bit depends on how a sequence is cut into steps, on company or threads.
#include <math.h>

#include <algorithm>
#include <type_traits>

#include "elements/each.h"
#include "elements/recurrence.h"
#include "runtime/rows.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr float kNormEps = 1e-6f;
constexpr size_t kTurn = 32;             // tokens whose keys are normalised before columns are walked
// Vectors of columns that are walked together: with keys of 128, 16 kB that stay in the first cache. A single token waits for memory, which
// is read and written in longer runs.
constexpr size_t kTogether = 2, kTogetherOnce = 4;

// Tokens of a row in the step: the number of the first, how many, the first one's position.
struct RowTokens {
    size_t first, count, start;
};
inline RowTokens tokens_of(const Step& step, size_t row) {
    const size_t first = static_cast<size_t>(step.cu_q[row]), count = static_cast<size_t>(step.cu_q[row + 1]) - first;
    return {first, count, static_cast<size_t>(step.kv_len[row]) - count};
}

// One token as all columns of a head see it. `to`: where the state behind it goes, null where nobody looks for it.
struct DeltaToken {
    float q[kMostKeyDim], k[kMostKeyDim];
    float decay, share;
    const float* v;
    float *to, *out;
};

// Some columns of a state: row `key` begins `apart` floats behind the one before it.
struct Columns {
    float* at;
    size_t apart;
};

// Asks for the lines of what is read, or written, one token later or more: another token's numbers lie in other pages.
inline void fetch(const float* x, size_t count) {
    for (size_t i = 0; i < count; i += kLanes) __builtin_prefetch(x + i);
}
inline void fetch_output(const float* x, size_t count) {
    for (size_t i = 0; i < count; i += kLanes) __builtin_prefetch(x + i, 1);
}

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

// The state behind a token and, while it is at hand, what the token and the next one's key make of it: out += q . state, sums += next . state.
template <size_t kVecs, bool kWhole, bool kNext>
inline void change_state(const DeltaToken& token, const float* next, size_t key_dim, Columns from, Columns to, size_t n, const Vec* change, Vec* out,
                         Vec* sums) {
    const Vec decay = all(token.decay);
    for (size_t key = 0; key < key_dim; ++key, from.at += from.apart, to.at += to.apart) {
        const Vec k = all(token.k[key]), q = all(token.q[key]), later = kNext ? all(next[key]) : zero();
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kVecs; ++j) {
            const Vec now = fma(k, change[j], take(from.at + j * kLanes, kWhole ? kLanes : n) * decay);
            put(to.at + j * kLanes, now, kWhole ? kLanes : n);
            out[j] = fma(q, now, out[j]);
            if (kNext) sums[j] = fma(later, now, sums[j]);
        }
    }
}

// All tokens of a turn for kVecs * 16 columns, or the n that are left of 16. A column has one sum over ascending keys at a time. Between two
// tokens its state lies here, row behind row: a head's whole rows fall into few sets of a cache.
template <size_t kVecs, bool kWhole>
void walk(const DeltaToken* tokens, size_t count, float* state, size_t key_dim, size_t columns, size_t column, size_t n) {
    alignas(64) float near[kMostKeyDim * kVecs * kLanes];
    Columns from = {state + column, columns};
    Vec sums[kVecs], change[kVecs], out[kVecs];
    RIDGELINE_UNROLL
    for (size_t j = 0; j < kVecs; ++j) sums[j] = zero();
    for (size_t key = 0; key < key_dim; ++key) {
        const Vec k = all(tokens->k[key]);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kVecs; ++j) sums[j] = fma(k, take(from.at + key * columns + j * kLanes, kWhole ? kLanes : n), sums[j]);
    }
    for (const DeltaToken *token = tokens, *end = tokens + count; token < end; ++token) {
        const Vec decay = all(token->decay), share = all(token->share);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kVecs; ++j) {
            change[j] = (take(token->v + column + j * kLanes, kWhole ? kLanes : n) - sums[j] * decay) * share;
            sums[j] = out[j] = zero();
        }
        const Columns to = token->to == nullptr ? Columns{near, kVecs * kLanes} : Columns{token->to + column, columns};
        if (token + 1 < end)
            change_state<kVecs, kWhole, true>(*token, token[1].k, key_dim, from, to, n, change, out, sums);
        else
            change_state<kVecs, kWhole, false>(*token, nullptr, key_dim, from, to, n, change, out, sums);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kVecs; ++j) put(token->out + column + j * kLanes, out[j], kWhole ? kLanes : n);
        from = to;
    }
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
        float* const before = state;
        for (size_t i = 0; i < count; ++i) {
            const size_t place = done + i, number = own.first + place, gate = number * op.parts + head;
            const float *x = op.x + number * op.columns, *q = x + key_head * dk;
            DeltaToken& token = tokens[i];
            unit(q, dk, scale, token.q);
            unit(q + keys, dk, 1.0f, token.k);
            token.v = x + 2 * keys + head * dv;
            token.share = sigmoid(op.beta[gate]);
            token.decay = decay_of(static_cast<double>(op.alpha[gate]) + static_cast<double>(op.dt[head]), op.a[head]);
            // The last states are kept. One behind a turn has the place of one that nobody goes back to: a later one of the step goes there.
            const bool kept = place + op.positions >= own.count;
            if (kept) state = state_of(own.start + place);
            token.to = kept || i + 1 == count ? state : nullptr;
            token.out = op.out + number * op.width + head * dv;
            fetch(token.v, dv);
            fetch_output(token.out, dv);
            if (place + kTurn < own.count) fetch(q + kTurn * op.columns, dk), fetch(q + kTurn * op.columns + keys, dk);
        }
        size_t column = 0;
        const auto walk_by = [&](auto vecs) {
            for (; column + vecs * kLanes <= dv; column += vecs * kLanes) walk<vecs, true>(tokens, count, before, dk, dv, column, kLanes);
        };
        if (own.count == 1) walk_by(std::integral_constant<size_t, kTogetherOnce>{});
        walk_by(std::integral_constant<size_t, kTogether>{});
        walk_by(std::integral_constant<size_t, 1>{});
        if (column < dv) walk<1, false>(tokens, count, before, dk, dv, column, dv - column);
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
