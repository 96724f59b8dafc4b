// Scales of a screened matrix's inputs, which make its bounds tight for the tokens that were seen.
//
// Of what the screen leaves out of a row, e, and a token x, sum e_i x_i is at most |c e| |x / c| for any scales c > 0 (Cauchy-Schwarz). Inputs of
// language models' heads differ in size by a hundred times; the mean of that product over rows and tokens is least where
// c_i^4 = mean x_i^2 / mean e_i^2. Bounds hold whatever tokens come: scales only say how much is computed behind them.
#pragma once

#include <vector>

#include "runtime/kernels.h"

namespace ridgeline {

class Channels {
public:
    // Whether it is time for new scales: before the first token, and when some have been seen.
    bool due() const { return next_ < kChoices && seen_ >= kSeen[next_]; }
    void choose(const Kernels& kernels, const Matrix& matrix);
    // A token of k inputs, until there is nothing left to choose.
    void see(const Codes& token, size_t k);
    ChannelScales scales() const { return {codes_.data(), steps_.data(), inverses_.data(), largest_}; }

private:
    // New scales cost about as much as a product of one token: those of a start's own text first, then of what is asked.
    static constexpr size_t kChoices = 5, kSeen[kChoices] = {0, 8, 64, 256, 1024};

    size_t next_ = 0, seen_ = 0;
    std::vector<double> energies_, left_out_;    // [k]: of tokens, each of 1 in all; of a sample of rows
    std::vector<int8_t> codes_;                  // as ChannelScales has them
    std::vector<float> steps_, inverses_;
    float largest_ = 0.0f;
};

}  // namespace ridgeline
