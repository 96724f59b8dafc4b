// Sampling: from a row's logits to its next tokens, and to what log-probabilities are made of. Equal to compute/decoding, which says what
// each step means and where it is from. The unit of work is a row, which samples a suffix of its positions; memory belongs to the caller.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "sample/record.h"

namespace ridgeline {

constexpr size_t kSampleBlock = 256;     // logits that are looked at together
constexpr size_t kMostSamples = 256;     // positions that a row samples in one step

// Which outputs of a row may be chosen, a bit each, in words up to the end of the last kSampleBlock; null: all.
using Mask = const uint32_t*;

// The arrays of a step, an entry for each of its sampling positions [S]. The logits are never written.
struct SampleStep {
    const float* logits;                 // [S, vocab], `logits_stride` apart
    size_t logits_stride;
    const float* maxima;                 // [S, ceil(vocab / kSampleBlock)] as `maxima` gives them, or null; logits of a block of -infinity are not read
    size_t maxima_stride;
    const uint8_t* finite;               // a row's walk ends before the first position that is not; null: all are
    const int32_t* drafts;               // behind each position: it goes on where this is what it samples; -1 at a row's end; null: no row has any

    int32_t* ids;                        // answers, as far as walks go
    double* log_sum_exp;                 // [S, 2] the largest logit as it came, and the log of the sum of e^(logit - largest): their sum would
                                         // round. The second NaN, and no best ids, where the largest is not finite
    int32_t* best_ids;                   // [S, min(logprobs, vocab)] ascending, `best_stride` apart
    size_t best_stride;
    int32_t* returned;                   // [rows]: how many ids each row samples; -1: it names an id outside the vocabulary
};

struct SampleKernels {
    // Answers row number `row`. `scratch` [sample_scratch(vocab)] aligned to 8 bytes.
    void (*row)(const SampleStep& step, const SampleRow& asked, size_t row, size_t vocab, void* scratch);

    // The largest of each kSampleBlock of logits [count]; NaN where one is.
    void (*maxima)(const float* logits, size_t count, float* maxima);

    // Makes logits [count], of which the first is that of id `first`, a multiple of 16, -infinity where they may not be chosen.
    void (*forbid)(Mask mask, size_t first, size_t count, float* logits);

    // Largest of logits [count], and the id of the first that has it when the first logit is that of id `first`; of the first NaN if there
    // is one, as in numpy. count ≥ 1.
    void (*argmax_slice)(const float* logits, size_t first, size_t count, float* best, int32_t* id);

    // The same of a whole row from what its slices gave, [slices] in the order of their ids.
    int32_t (*argmax_merge)(const float* best, const int32_t* ids, size_t slices);
};

// Bytes of scratch: a row's blocks, their maxima, copies of those that are edited, a block of nothing, a list of candidates, and one of ids.
static inline size_t sample_scratch(size_t vocab) {
    const size_t blocks = (vocab + kSampleBlock - 1) / kSampleBlock;
    return blocks * (sizeof(float*) + sizeof(float)) + (3 * blocks + 2) * kSampleBlock * sizeof(float) + sizeof(double);
}

}  // namespace ridgeline
