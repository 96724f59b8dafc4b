#include "screen/channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ridgeline {

// A token of inputs of one size comes on top of those seen: none has a scale of nothing.
void Channels::choose(const Kernels& kernels, const Matrix& matrix) {
    const size_t k = matrix.k;
    if (next_ == 0) {
        energies_.assign(k, 1.0 / static_cast<double>(k)), left_out_.resize(k);
        codes_.resize(k), steps_.resize(k / kCodeGroup), inverses_.resize(k);
        kernels.linear->left_out(matrix, left_out_.data());
    }
    ++next_;
    std::vector<double> squares(k);
    for (size_t i = 0; i < k; ++i) squares[i] = std::sqrt(energies_[i] / left_out_[i]);
    const double mean = std::accumulate(squares.begin(), squares.end(), 0.0) / static_cast<double>(k);
    const bool usual = std::all_of(squares.begin(), squares.end(), [&](double square) { return square > 0.0 && std::isfinite(mean); });
    for (double& square : squares) square = usual ? square / mean : 1.0;  // weights may be zero, or not finite
    double largest = 0.0;
    for (size_t i = 0; i < k; i += kCodeGroup) {
        float& step = steps_[i / kCodeGroup];
        step = static_cast<float>(*std::max_element(&squares[i], &squares[i] + kCodeGroup) / 127.0);
        for (size_t j = i; j < i + kCodeGroup; ++j) {
            const double code = std::clamp(std::round(squares[j] / step), 1.0, 127.0), square = code * step;
            codes_[j] = static_cast<int8_t>(code), inverses_[j] = static_cast<float>((1.0 + 0x1p-22) / square);
            largest = std::max(largest, square);
        }
    }
    largest_ = static_cast<float>(std::sqrt(largest) * (1.0 + 0x1p-22));
}

void Channels::see(const Codes& token, size_t k) {
    if (next_ == kChoices) return;
    const auto square = [&](size_t i) {
        const double x = static_cast<double>(token.codes[i]) * token.scales[i / kCodeGroup];
        return x * x;
    };
    double sum = 0.0;
    for (size_t i = 0; i < k; ++i) sum += square(i);
    if (!(sum > 0.0 && std::isfinite(sum))) return;
    ++seen_;
    for (size_t i = 0; i < k; ++i) energies_[i] += square(i) / sum;
}

}  // namespace ridgeline
