// What the sources of the sampler share within one ISA level.
#pragma once

#include "sample/sample.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

constexpr size_t kBlock = kSampleBlock;

// A row of logits as blocks, so that an edit copies what it touches and a threshold skips what it exceeds. Behind the vocabulary the last
// block holds -infinity.
struct BlockRow {
    const float** blocks;                // [count] of kBlock logits each
    float* maxima;                       // [count] the largest of each block; NaN where it has one
    size_t count, vocab;
    float* copies;                       // [count * kBlock] where edited blocks are
    float* nothing;                      // [kBlock] of -infinity
    float* list;                         // [(count + 1) * kBlock] candidates
    int32_t* ids;                        // [count * kBlock] whatever an edit wants to remember
};

// A sampling position as edits and noise see it: its row, and how many of the row's drafts are known by then, beside the row's history.
struct Place {
    const SampleRow& row;
    const int32_t* drafts;               // [known]
    size_t known;

    uint64_t position() const { return row.position + known; }
    int64_t output() const { return static_cast<int64_t>(position()) - row.prompt_tokens; }
};

// Which tokens survive: those above `value`, and those that equal it up to the id `last`.
struct Cut {
    float value;
    int32_t last;
};

// Turns a logit into the logarithm of a weight: (logit - highest) / temperature in float64, as the reference does.
struct Scale {
    double highest, temperature;
    double operator()(float logit) const { return (static_cast<double>(logit) - highest) / temperature; }
};

struct Best {
    float value;
    int32_t id;
};

// row.cpp
float largest(const float* x, size_t count);                             // NaN if there is one
size_t place_of(const float* x, float value);                            // of the first that is `value`, or the first NaN
void forbid(Mask mask, size_t first, size_t count, float* logits);          // see `SampleKernels`
BlockRow split(const float* logits, const float* maxima, size_t vocab, void* scratch);
Best best_of(const BlockRow& row);

// edits.cpp
enum class Edited { nothing, logits, refused };                          // refused: an id lies outside the vocabulary
Edited edit(BlockRow& row, const Place& place);

// weights.cpp
void weigh(const float* x, Scale scale, double* weights);                // [kBlock] each
double mass_of(const BlockRow& row, Cut cut, Scale scale);               // sum of the survivors' weights
double mass_nearly(const BlockRow& row, Cut cut, Scale scale, double* error);   // the same within a share `error` of it, in half the time
double log_sum_exp(const BlockRow& row, float highest);                  // above `highest`

// select.cpp
const float* survivors(const BlockRow& row, size_t block, Cut cut, float* memory);  // [kBlock]: -infinity for tokens that do not survive
float least_logit(Scale scale, double bound);                            // the least logit that `scale` takes to `bound` ≤ 0 or above
Cut top_k(const BlockRow& row, size_t k);                                // 1 ≤ k ≤ vocab
Cut top_p(const BlockRow& row, Cut cut, Scale scale, double p);
void ids_of(const BlockRow& row, Cut cut, int32_t* ids);                 // ascending

// noise.cpp
int32_t gumbel_max(const BlockRow& row, Cut cut, Scale scale, int32_t best, const Place& place);

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
