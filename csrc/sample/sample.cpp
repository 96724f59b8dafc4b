// Sampling of one row, position by position: what changes logits, then greedy, or Gumbel-max over what the filters leave. No sort and no
// noise over the vocabulary: the maxima of its blocks say where the candidates of a threshold are.
#include "sample/sample.h"

#include <math.h>

#include "runtime/follow.h"
#include "sample/parts.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

void log_probabilities(const BlockRow& row, float highest, const SampleStep& step, size_t at, int64_t most) {
    step.log_sum_exp[2 * at] = highest;
    step.log_sum_exp[2 * at + 1] = isfinite(highest) ? log_sum_exp(row, highest) : NAN;
    if (!isfinite(highest)) return;
    const size_t wanted = static_cast<size_t>(most);
    if (wanted > 0) ids_of(row, top_k(row, wanted < row.vocab ? wanted : row.vocab), step.best_ids + at * step.best_stride);
}

int32_t choose(const BlockRow& row, Best best, const Place& place) {
    const SampleRow& asked = place.row;
    const Scale scale = {best.value, asked.temperature};
    Cut cut = {-INFINITY, INT32_MAX};
    if (asked.top_k > 0 && static_cast<size_t>(asked.top_k) < row.vocab) cut = top_k(row, static_cast<size_t>(asked.top_k));
    const float least = asked.min_p > 0.0 ? least_logit(scale, log(asked.min_p)) : -INFINITY;
    if (least > cut.value) cut = {least, INT32_MAX};
    if (asked.top_p < 1.0) cut = top_p(row, cut, scale, asked.top_p);
    return gumbel_max(row, cut, scale, best.id, place);
}

// The token of a position, or -1 where its row names an id outside the vocabulary.
int32_t sample_place(const SampleStep& step, const Place& place, size_t vocab, void* scratch) {
    const size_t at = place.row.first + place.known;
    const float* maxima = step.maxima == nullptr ? nullptr : step.maxima + at * step.maxima_stride;
    BlockRow row = split(step.logits + at * step.logits_stride, maxima, vocab, scratch);
    Best best = best_of(row);
    if (place.row.logprobs >= 0) log_probabilities(row, best.value, step, at, place.row.logprobs);
    const Edited edited = edit(row, place);
    if (edited == Edited::refused) return -1;
    if (edited == Edited::logits) best = best_of(row);
    const bool greedy = place.row.temperature == 0.0 || !isfinite(best.value);
    return greedy ? best.id : choose(row, best, place);
}

// The token of a row that asks its grammar, as under a mask: where the grammar takes both the largest logit, which weights are reckoned from,
// and the winner of the draw over all ids, the winner is also that of the draw over what a mask leaves, since noise belongs to the id.
int32_t ask_grammar(const SampleStep& step, const SampleRow& asked, size_t vocab, void* scratch) {
    const GrammarCalls& calls = *reinterpret_cast<const GrammarCalls*>(asked.calls);
    Follower& follower = *reinterpret_cast<Follower*>(asked.follower);
    const float* maxima = step.maxima == nullptr ? nullptr : step.maxima + asked.first * step.maxima_stride;
    const BlockRow row = split(step.logits + asked.first * step.logits_stride, maxima, vocab, scratch);
    const Best best = best_of(row);
    if (takes(calls, follower, best.id)) {
        const bool greedy = asked.temperature == 0.0 || !isfinite(best.value);
        const int32_t id = greedy ? best.id : choose(row, best, {asked, nullptr, 0});
        if (id == best.id || takes(calls, follower, id)) return id;
    }
    write_mask(calls, follower);
    SampleRow masked = asked;
    masked.masks.items = follower.mask, masked.masks.count = calls.room / sizeof(uint32_t);
    return sample_place(step, {masked, nullptr, 0}, vocab, scratch);
}

void sample_row(const SampleStep& step, const SampleRow& asked, size_t row, size_t vocab, void* scratch) {
    const int32_t* drafts = step.drafts == nullptr ? nullptr : step.drafts + asked.first;
    int32_t returned = 0;
    for (size_t known = 0; known < asked.count; ++known) {
        const size_t at = asked.first + known;
        if (step.finite != nullptr && step.finite[at] == 0) break;
        const bool asks = asked.follower != 0;
        step.ids[at] = asks ? ask_grammar(step, asked, vocab, scratch) : sample_place(step, {asked, drafts, known}, vocab, scratch);
        returned = step.ids[at] < 0 ? -1 : returned + 1;
        if (returned < 0 || drafts == nullptr || step.ids[at] != drafts[known]) break;
    }
    step.returned[row] = returned;
}

void maxima(const float* logits, size_t count, float* maxima) {
    for (size_t start = 0; start < count; start += kBlock) *maxima++ = largest(logits + start, count - start < kBlock ? count - start : kBlock);
}

void argmax_slice(const float* logits, size_t first, size_t count, float* best, int32_t* id) {
    float found = -INFINITY;
    size_t where = 0;
    for (size_t start = 0; start < count && !isnan(found); start += kBlock) {
        const float value = largest(logits + start, count - start < kBlock ? count - start : kBlock);
        if (value > found || isnan(value)) found = value, where = start;
    }
    *best = found;
    *id = static_cast<int32_t>(first + where + place_of(logits + where, found));
}

int32_t argmax_merge(const float* best, const int32_t* ids, size_t slices) {
    size_t where = 0;
    for (size_t i = 1; i < slices && !isnan(best[where]); ++i)
        if (best[i] > best[where] || isnan(best[i])) where = i;
    return ids[where];
}

}  // namespace

extern const SampleKernels kSample;
const SampleKernels kSample = {sample_row, maxima, forbid, argmax_slice, argmax_merge};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
