// The lowest id of each row's largest output without computing all outputs: bounds of all of them first, then those that reach what one
// of them surely has. Exact: the ids are those of the whole product, whatever the bounds are worth.
//
// Where too many outputs have to be computed after all, the next steps are not screened: twice as many each time in a row.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"

namespace ridgeline {

class Screen {
public:
    // What was screened since the beginning: steps; those that were not since few outputs could be left out before; pairs of a token and a block of
    // 16 outputs, and how many of these were computed.
    struct Counts {
        uint64_t steps, passed, pairs, computed;
    };

    Screen(const Kernels& kernels, const Matrix& matrix, const Codes& x) : kernels_(kernels), matrix_(matrix), x_(x) {}

    // Whether the next step is screened, in chunks of `each` blocks.
    bool begin(size_t tokens, size_t each);
    // The ids [tokens], when all chunks are done.
    void end(int32_t* best);

    // The phases, one after the other: tokens, chunks, tokens, chunks. `outputs` [tokens, 16].
    void measure(size_t token) { kernels_.linear->measure(x_, matrix_.k, token, shared()); }
    void bound(size_t chunk, uint8_t* scratch);
    void threshold(size_t token, float* outputs, uint8_t* scratch);
    void compute(size_t chunk, float* outputs, uint8_t* scratch);

    const Counts& counts() const { return counts_; }

private:
    Screening shared() { return {tokens_, sizes_.data(), offsets_.data(), nullptr, nullptr, nullptr}; }
    size_t blocks() const { return (matrix_.n + kBlockRows - 1) / kBlockRows; }
    // Whether an output of a block could be a token's largest.
    bool wanted(size_t block, size_t token) const { return !(bounds_[block * tokens_ + token] < thresholds_[token]); }
    // Outputs of one block for `count` tokens from `token`.
    size_t outputs_of(size_t block, size_t token, size_t count, float* outputs, uint8_t* scratch) const;

    // Outputs [columns] from `column` into the best of a chunk.
    void take(size_t token, size_t chunk, size_t column, const float* outputs, size_t columns);

    const Kernels& kernels_;
    const Matrix matrix_;
    const Codes x_;
    size_t tokens_ = 0, each_ = 0, chunks_ = 0;
    std::vector<float> sizes_, bounds_, thresholds_;  // [tokens], [blocks, tokens], [tokens]
    std::vector<int32_t> offsets_;
    std::vector<float> highest_;                      // [chunks, tokens]: the largest bound, and its block
    std::vector<int32_t> where_;
    std::vector<float> best_values_;                  // [tokens, chunks]
    std::vector<int32_t> best_ids_;
    std::vector<size_t> computed_;                    // [chunks]
    double share_ = 0.0;                              // computed after all, a mean over steps
    size_t pause_ = 0, last_pause_ = 0;               // steps
    Counts counts_{};
};

}  // namespace ridgeline
