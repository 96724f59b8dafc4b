// The choice of experts, and the sum of what they give: one token per call. Sums of weights run over ascending experts, one after the other.
#include <math.h>

#include "runtime/experts.h"
#include "runtime/rows.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr float kLeast = 1e-20f;         // added to a sum of weights before they are divided by it

// e^x of each, in place.
void exponentials(float* x, size_t count) {
    for (size_t i = 0; i < count; i += kLanes) {
        const size_t n = count - i < kLanes ? count - i : kLanes;
        n == kLanes ? store(x + i, exponential(load(x + i))) : store_first(x + i, exponential(load_first(x + i, n)), n);
    }
}

float sum(const float* x, size_t count) {
    float total = 0.0f;
    for (size_t i = 0; i < count; ++i) total += x[i];
    return total;
}

// NaN where one is.
float largest(const float* x, size_t count) {
    float most = -INFINITY;
    for (size_t i = 0; i < count; ++i) {
        if (x[i] != x[i]) return NAN;
        if (x[i] > most) most = x[i];
    }
    return most;
}

void softmax(float* x, size_t count) {
    const float most = largest(x, count);
    for (size_t i = 0; i < count; ++i) x[i] -= most;
    exponentials(x, count);
    const float total = sum(x, count);
    for (size_t i = 0; i < count; ++i) x[i] /= total;
}

void sigmoid(float* x, size_t count) {
    for (size_t i = 0; i < count; ++i) x[i] = -x[i];
    exponentials(x, count);
    for (size_t i = 0; i < count; ++i) x[i] = 1.0f / (1.0f + x[i]);
}

// Marks the `wanted` largest in `taken`: of equals the lower ones, NaN below all numbers, what is not allowed below NaN.
void take_largest(const float* x, const bool* allowed, size_t count, size_t wanted, bool* taken) {
    for (size_t i = 0; i < count; ++i) taken[i] = false;
    for (size_t number = 0; number < wanted; ++number) {
        size_t best = count;
        int rank = 0;
        for (size_t i = 0; i < count; ++i) {
            if (taken[i]) continue;
            const int own = !allowed[i] ? 2 : x[i] != x[i] ? 1 : 0;
            if (best == count || own < rank || (own == 0 && rank == 0 && x[i] > x[best])) best = i, rank = own;
        }
        taken[best] = true;
    }
}

// The largest of a group, or the sum of its two largest; NaN counts as the least.
float score_of_group(const float* x, size_t count, int kind) {
    float first = -INFINITY, second = count > 1 ? -INFINITY : 0.0f;
    for (size_t i = 0; i < count; ++i) {
        if (x[i] > first) second = count > 1 ? first : 0.0f, first = x[i];
        else if (x[i] > second) second = x[i];
    }
    return kind == kTop2 ? first + second : first;
}

}  // namespace

void route_logits(const RouteLogits& op, const Step&, size_t row) {
    const size_t count = op.columns, k = op.k;
    const float* given = op.logits + row * count;
    float logits[kMostExperts], scores[kMostExperts], values[kMostExperts] = {};
    bool allowed[kMostExperts] = {}, taken[kMostExperts];
    const bool added = op.bias != nullptr && !op.bias_selects, selects = op.bias != nullptr && op.bias_selects;
    for (size_t i = 0; i < count; ++i) scores[i] = logits[i] = added ? given[i] + op.bias[i] : given[i];
    if (op.scores == kSoftmax) softmax(scores, count);
    if (op.scores == kSigmoid) sigmoid(scores, count);
    for (size_t i = 0; i < count; ++i) values[i] = selects ? scores[i] + op.bias[i] : logits[i], allowed[i] = true;
    if (op.groups > 1) {
        const size_t size = count / op.groups;
        float best[kMostExperts];
        bool kept[kMostExperts];
        for (size_t group = 0; group < op.groups; ++group) best[group] = score_of_group(values + group * size, size, op.group_score);
        take_largest(best, allowed, op.groups, op.groups_kept, kept);
        for (size_t i = 0; i < count; ++i) allowed[i] = kept[i / size];
    }
    take_largest(values, allowed, count, k, taken);
    int32_t* ids = op.out_ids + row * k;
    float* weights = op.out_weights + row * k;
    size_t found = 0;
    for (size_t i = 0; i < count; ++i)
        if (taken[i]) weights[found] = scores[i], ids[found++] = static_cast<int32_t>(i);
    if (op.scores == kSoftmaxChosen) softmax(weights, k);
    const float total = op.normalise ? sum(weights, k) + kLeast : 1.0f;
    for (size_t i = 0; i < k; ++i) weights[i] = weights[i] / total * op.scale;
}

void combine(const Combine& op, const Step&, size_t row) {
    const float *y = op.y + row * op.k * op.width, *weights = op.weights + row * op.k;
    float* out = op.out + row * op.width;
    for (size_t i = 0; i < op.width; i += kLanes) {
        const size_t n = op.width - i < kLanes ? op.width - i : kLanes;
        const auto take = [&](size_t choice) { return n == kLanes ? load(y + choice * op.width + i) : load_first(y + choice * op.width + i, n); };
        Vec total = all(weights[0]) * take(0);
        for (size_t choice = 1; choice < op.k; ++choice) total = total + all(weights[choice]) * take(choice);
        n == kLanes ? store(out + i, total) : store_first(out + i, total, n);
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
