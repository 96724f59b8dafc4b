// Sampling: from one row of logits to a token, and to what log-probabilities are made of. Equal to compute/decoding, which says what each
// step means and where it is from. The unit of work is a row; memory belongs to the caller.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

constexpr size_t kSampleBlock = 256;     // logits that are looked at together

// What a row asks for, and its answer. Python writes it as a numpy record (compute/cpu/sampling.py): fields of 8 bytes, so that there are no
// holes. Ids outside the vocabulary are refused, and the logits are never written.
struct SampleRow {
    const float* logits;                 // [vocab]
    const float* maxima;                 // [ceil(vocab / kSampleBlock)] as `maxima` gives them, or null; logits of a block of -infinity are not read
    uint64_t seed, choice, position;     // what the noise is a function of; choice and position below 2^32
    double temperature;                  // 0: greedy
    double top_p;                        // 1: off
    double log_min_p;                    // logarithm of min-p; -infinity: off
    int64_t top_k;                       // outside 1 … vocab - 1: off

    // What changes logits, in the order in which it applies; a pointer is null where there is nothing.
    const uint32_t* allowed;             // [ceil(vocab / 32)], a bit an id
    const int32_t* completing;           // ids that would complete a bad word; these and the next differ from each other
    uint64_t completing_count;
    const int32_t* stops;                // ids that may not be sampled yet
    uint64_t stops_count;
    const int32_t* biased;               // ids and what is added to their logits
    const double* bias;
    uint64_t bias_count;
    const int32_t* seen;                 // ids of prompt and outputs, each once, and how often it was an output
    const int32_t* times;
    uint64_t seen_count;
    double repetition, frequency, presence;

    int64_t best_count;                  // log-probabilities: so many best ids; -1: none are asked for
    int32_t* best_ids;                   // [min(best_count, vocab)] written ascending

    int64_t token;                       // answer; -1: an id lies outside the vocabulary
    double log_sum_exp;                  // of the logits as they came; NaN, and no best ids, where their largest is not finite
};

struct SampleKernels {
    // Answers one row. `scratch` [sample_scratch(vocab)] aligned to 8 bytes.
    void (*row)(SampleRow* row, size_t vocab, void* scratch);

    // The largest of each kSampleBlock of logits [count]; NaN where one is.
    void (*maxima)(const float* logits, size_t count, float* maxima);

    // Largest of logits [count], and the id of the first that has it when the first logit is that of id `first`; of the first NaN if there
    // is one, as in numpy. count ≥ 1.
    void (*argmax_slice)(const float* logits, size_t first, size_t count, float* best, int32_t* id);

    // The same of a whole row from what its slices gave, [slices] in the order of their ids.
    int32_t (*argmax_merge)(const float* best, const int32_t* ids, size_t slices);
};

// Bytes of scratch: a row's blocks, their maxima, copies of those that are edited, a block of nothing, and a list of candidates.
static inline size_t sample_scratch(size_t vocab) {
    const size_t blocks = (vocab + kSampleBlock - 1) / kSampleBlock;
    return blocks * (sizeof(float*) + sizeof(float)) + (2 * blocks + 2) * kSampleBlock * sizeof(float) + sizeof(double);
}

}  // namespace ridgeline
