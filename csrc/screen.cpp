#include "screen.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

namespace ridgeline {

namespace {

constexpr size_t kTried = 4;             // blocks of the highest bounds, one of which mostly has the largest output
// A screen saves a third of the product or more. A block that is computed afterwards comes from memory by itself: it costs about twice what it
// costs among all where one token reads them, and four times that where several share the reading. So much of all, in the mean over steps, of
// which the last counts for a sixteenth, and alone behind a pause.
constexpr double kMostShare = 1.0 / 6.0, kMostShareOfSeveral = 1.0 / 12.0, kWeight = 1.0 / 16.0;
constexpr size_t kLeastPause = 8, kMostPause = 256;

}  // namespace

bool Screen::begin(size_t tokens, size_t each) {
    if (tokens == 0) return false;
    if (pause_ > 0) {
        --pause_, ++counts_.passed;
        return false;
    }
    tokens_ = tokens, each_ = each, chunks_ = (blocks() + each - 1) / each;
    sizes_.resize(tokens), thresholds_.resize(tokens);
    offsets_.resize(tokens * (matrix_.k / 16));
    bounds_.resize(tokens * blocks());
    highest_.resize(tokens * chunks_), where_.resize(tokens * chunks_);
    best_values_.assign(tokens * chunks_, -INFINITY), best_ids_.assign(tokens * chunks_, INT32_MAX);
    computed_.assign(chunks_, 0);
    return true;
}

void Screen::end(int32_t* best) {
    for (size_t token = 0; token < tokens_; ++token)
        best[token] = kernels_.sample->argmax_merge(&best_values_[token * chunks_], &best_ids_[token * chunks_], chunks_);
    size_t computed = 0;
    for (const size_t each : computed_) computed += each;
    const size_t pairs = blocks() * tokens_;
    counts_.steps += 1, counts_.pairs += pairs, counts_.computed += computed;
    const double share = static_cast<double>(computed) / static_cast<double>(pairs);
    share_ = last_pause_ > 0 ? share : share_ + (share - share_) * kWeight;
    if (share_ <= (tokens_ == 1 ? kMostShare : kMostShareOfSeveral)) return void(last_pause_ = 0);
    pause_ = last_pause_ = std::clamp(2 * last_pause_, kLeastPause, kMostPause);
}

void Screen::bound(size_t chunk, uint8_t* scratch) {
    const size_t first = chunk * each_, count = std::min(each_, blocks() - first);
    Screening of = shared();
    of.bounds = &bounds_[first * tokens_], of.best = &highest_[chunk * tokens_], of.where = &where_[chunk * tokens_];
    if (!kernels_.linear->screen(matrix_, x_, of, first, count, scratch)) std::fill_n(of.best, tokens_, NAN);
}

size_t Screen::outputs_of(size_t block, size_t token, size_t count, float* outputs, uint8_t* scratch) const {
    const size_t groups = matrix_.k / kCodeGroup, column = block * kBlockRows;
    const Codes x = {x_.codes + token * x_.stride, x_.scales + token * groups, x_.sums + token * groups * 2, x_.stride};
    kernels_.linear->multiply(matrix_, x, count, {outputs - column, kBlockRows}, block, 1, scratch);
    return std::min(matrix_.n - column, kBlockRows);
}

// The largest output of some blocks, in eighths, less what underflow takes from both sums: products of scales lose 2^-150, times less than
// 2^19 of a group here and 2^16 in eighths there, sums another 2^-150. NaN, which no bound is below, where bounds may not be used.
void Screen::threshold(size_t token, float* outputs, uint8_t* scratch) {
    size_t tried[kTried], count = 0;
    const auto highest = [&](size_t chunk) { return highest_[chunk * tokens_ + token]; };
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
        if (std::isnan(highest(chunk))) {
            thresholds_[token] = NAN;
            return;
        }
        size_t place = count < kTried ? count++ : kTried;
        for (; place > 0 && highest(tried[place - 1]) < highest(chunk); --place)
            if (place < kTried) tried[place] = tried[place - 1];
        if (place < kTried) tried[place] = chunk;
    }
    float largest = -INFINITY;
    for (size_t i = 0; i < count; ++i) {
        const size_t block = static_cast<size_t>(where_[tried[i] * tokens_ + token]), columns = outputs_of(block, token, 1, outputs, scratch);
        for (size_t column = 0; column < columns; ++column) largest = std::max(largest, outputs[column]);
    }
    thresholds_[token] = largest / 8.0f - static_cast<float>(matrix_.k / kCodeGroup) * (FLT_MIN / 16.0f);
}

void Screen::compute(size_t chunk, float* outputs, uint8_t* scratch) {
    const size_t first = chunk * each_, last = std::min(first + each_, blocks());
    for (size_t block = first; block < last; ++block) {
        for (size_t token = 0; token < tokens_; ++token) {
            if (!wanted(block, token)) continue;
            size_t end = token + 1;
            while (end < tokens_ && wanted(block, end)) ++end;
            const size_t columns = outputs_of(block, token, end - token, outputs, scratch);
            computed_[chunk] += end - token;
            for (const float* each = outputs; token < end; ++token, each += kBlockRows) take(token, chunk, block * kBlockRows, each, columns);
        }
    }
}

void Screen::take(size_t token, size_t chunk, size_t column, const float* outputs, size_t columns) {
    float value, &best = best_values_[token * chunks_ + chunk];
    int32_t found, &id = best_ids_[token * chunks_ + chunk];
    kernels_.sample->argmax_slice(outputs, column, columns, &value, &found);
    if (id == INT32_MAX || value > best || (std::isnan(value) && !std::isnan(best))) best = value, id = found;
}

}  // namespace ridgeline
