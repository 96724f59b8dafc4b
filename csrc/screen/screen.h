// Each row's largest outputs, or the lowest id of the largest, without computing all outputs: bounds of all of them first, then those that
// reach what as many outputs as are needed surely have. Exact: outputs are those of the whole product, whatever the bounds are worth.
//
// Where too many outputs have to be computed after all, the next steps are not screened: twice as many each time in a row.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/kernels.h"
#include "screen/channels.h"

namespace ridgeline {

// Of the 16 outputs of a block.
inline uint32_t allowed(Mask mask, size_t block) { return mask == nullptr ? 0xffffu : mask[block / 2] >> (block % 2 * kBlockRows) & 0xffffu; }

class Screen {
public:
    static constexpr int32_t kMostKept = 128;  // of the largest outputs of a row: of more the bounds leave too many

    // What was screened since the beginning: steps; those that skipped it, as few outputs could be left out before; pairs of a token and a block of
    // 16 outputs, and how many of these were computed.
    struct Counts {
        uint64_t steps, skipped, pairs, computed;
    };

    Screen(const Kernels& kernels, const Matrix& matrix, const Codes& x, size_t threads)
        : kernels_(kernels), matrix_(matrix), x_(x), gathered_(threads) {}

    // Whether the next step is screened, in chunks of `each` blocks, a multiple of those of kSampleBlock outputs. `keep` [tokens]: so many of
    // the largest outputs are needed, and those that equal the last; null: one. `masks` [tokens]: of those that these allow; null: of all.
    bool begin(size_t tokens, size_t each, const int32_t* keep, const Mask* masks);
    // Whether the next step is not one of those that are not screened.
    bool ready() const { return pause_ == 0; }
    size_t chunks() const { return chunks_; }
    // Whether masks leave every token so few outputs that all of these are computed, and no bounds.
    bool few() const { return bounded_ == 0; }
    // When all chunks are done.
    void end();

    // The phases, one after the other: tokens, chunks, tokens, chunks: these by either of the last two.
    void measure(size_t token);
    void bound(size_t chunk, uint8_t* scratch);
    void threshold(size_t token, uint8_t* scratch);
    // The largest outputs alone, of which `best` gives the ids [tokens] when all chunks are done.
    void find(size_t chunk, size_t thread, uint8_t* scratch);
    void best(int32_t* ids) const;
    // Behind these phases, of each token its largest output: it is what is wanted, or the largest of what a mask allows is looked for: at once
    // where that is little, else when the phase of `find` comes again.
    int32_t best(size_t token) const;
    void settle(size_t token) { open_[token] = 0, --unsettled_; }
    void look_again(size_t token, Mask mask, uint8_t* scratch);
    bool settled() const { return unsettled_ == 0; }
    // Outputs that are needed, and the maxima [tokens, ceil(n / kSampleBlock)] of their blocks: a block with some of them holds -infinity where
    // others are, and where masks forbid; of a block without the maximum is that, and it is not written.
    void write(size_t chunk, const Product& to, float* maxima, size_t thread, uint8_t* scratch);

    const Counts& counts() const { return counts_; }

private:
    struct Bound {
        float value;
        size_t block;
    };

    // Activations of some tokens next to each other.
    struct Copies {
        std::vector<int8_t> codes;
        std::vector<float> scales;
        std::vector<int32_t> sums;

        void resize(size_t tokens, size_t k);
        void put(size_t place, const Codes& token, size_t k);
        Codes all(size_t k) const { return {codes.data(), scales.data(), sums.data(), k}; }
    };
    // The tokens that want a block, a thread each: which, their activations, and their outputs [tokens, 16].
    struct Gathered {
        std::vector<size_t> open, tokens;
        Copies x;
        std::vector<float> outputs;
    };

    Screening shared() { return {bounded_, channels_.scales(), rows_.data(), sizes_.data(), offsets_.data(), nullptr, nullptr}; }
    size_t blocks() const { return (matrix_.n + kBlockRows - 1) / kBlockRows; }
    size_t columns_of(size_t block, size_t count) const;
    Mask mask(size_t token) const { return masks_[token]; }
    bool leaves_few(Mask mask) const;
    float& bound_of(size_t block, size_t token) { return bounds_[block * bounded_ + place_[token]]; }
    float& highest_of(size_t chunk, size_t token) { return highest_[chunk * bounded_ + place_[token]]; }
    // Activations of the tokens that have bounds.
    Codes bounded() const { return bounded_ == tokens_ ? x_ : copies_.all(matrix_.k); }
    // Whether outputs of a block could be among those that a token needs.
    bool wanted(size_t block, size_t token) const {
        // The mask first: bounds of a token are far apart.
        return allowed(mask(token), block) != 0 && (few_[token] || !(bounds_[block * bounded_ + place_[token]] < thresholds_[token]));
    }
    Codes token(size_t token) const;
    // Lists the tokens whose outputs are looked for.
    void list_open(Gathered& of) const;
    // Outputs of a block for all of these that want it, which share its reading.
    void gather(size_t block, Gathered& of, uint8_t* scratch) const;
    // The largest output of a token whose mask leaves few blocks; false where it leaves more.
    bool take_few(size_t token, uint8_t* scratch);
    // A token's `most` highest bounds of blocks that it may choose from, or all, in no order.
    size_t highest_bounds(size_t token, size_t most, Bound* found);
    // Outputs [columns] from `column` into the best of a chunk.
    void take(size_t token, size_t chunk, size_t column, const float* outputs, size_t columns);
    // What is needed of blocks first … first + count, which are one of kSampleBlock outputs; how many pairs of a token and a block are.
    size_t write_outputs(size_t first, size_t count, const Product& to, Gathered& of, uint8_t* scratch) const;

    const Kernels& kernels_;
    const Matrix matrix_;
    const Codes x_;
    size_t tokens_ = 0, each_ = 0, chunks_ = 0;
    const int32_t* keep_ = nullptr;
    std::vector<Mask> masks_;                         // [tokens]
    std::vector<uint8_t> open_;                       // [tokens]: their outputs are looked for
    std::atomic<size_t> unsettled_{0};
    std::vector<uint8_t> few_;                        // [tokens]: masks leave so few outputs that these have no bounds
    std::vector<size_t> place_;                       // [tokens]: among those that have bounds
    size_t bounded_ = 0;                              // tokens that have bounds
    Copies copies_;                                   // of these, where others have none
    Channels channels_;
    bool fits_ = false;                               // to new scales of channels: what the bounds of rows add
    std::vector<float> rows_;                         // [blocks * 16]: that
    std::vector<float> sizes_, bounds_, thresholds_;  // [bounded], [blocks, bounded], [tokens]
    std::vector<int32_t> offsets_;
    std::vector<float> highest_;                      // [chunks, bounded]: the largest bound
    std::vector<uint32_t> order_;                     // [tokens, chunks]: by these
    std::vector<float> best_values_;                  // [tokens, chunks]
    std::vector<int32_t> best_ids_;
    std::vector<size_t> computed_;                    // [chunks]
    std::vector<Gathered> gathered_;                  // [threads]
    double share_ = 0.0;                              // computed after all, a mean over steps
    size_t pause_ = 0, last_pause_ = 0;               // steps
    Counts counts_{};
};

}  // namespace ridgeline
