// Sampling of one row: what changes logits, then greedy, or Gumbel-max over what the filters leave. No sort and no noise over the
// vocabulary: the maxima of its blocks say where the candidates of a threshold are.
#include "sample/sample.h"

#include <math.h>

#include "sample/parts.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

bool edits(const SampleRow& asked) {
    return asked.allowed != nullptr || asked.completing_count + asked.stops_count + asked.bias_count + asked.seen_count > 0;
}

void log_probabilities(const BlockRow& row, float highest, SampleRow* asked) {
    if (!isfinite(highest)) {
        asked->log_sum_exp = NAN;
        return;
    }
    asked->log_sum_exp = log_sum_exp(row, highest);
    const size_t wanted = static_cast<size_t>(asked->best_count);
    if (wanted > 0) ids_of(row, top_k(row, wanted < row.vocab ? wanted : row.vocab), asked->best_ids);
}

int32_t choose(const BlockRow& row, Best best, const SampleRow& asked) {
    const Scale scale = {best.value, asked.temperature};
    Cut cut = {-INFINITY, INT32_MAX};
    if (asked.top_k > 0 && static_cast<size_t>(asked.top_k) < row.vocab) cut = top_k(row, static_cast<size_t>(asked.top_k));
    const float least = asked.log_min_p > -INFINITY ? least_logit(scale, asked.log_min_p) : -INFINITY;
    if (least > cut.value) cut = {least, INT32_MAX};
    if (asked.top_p < 1.0) cut = top_p(row, cut, scale, asked.top_p);
    return gumbel_max(row, cut, scale, best.id, asked);
}

void sample_row(SampleRow* asked, size_t vocab, void* scratch) {
    BlockRow row = split(*asked, vocab, scratch);
    Best best = best_of(row);
    if (asked->best_count >= 0) log_probabilities(row, best.value, asked);
    if (edits(*asked)) {
        if (!edit(row, *asked)) {
            asked->token = -1;
            return;
        }
        best = best_of(row);
    }
    const bool greedy = asked->temperature == 0.0 || !isfinite(best.value);
    asked->token = greedy ? best.id : choose(row, best, *asked);
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
const SampleKernels kSample = {sample_row, maxima, argmax_slice, argmax_merge};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
