#include "screen/screen.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>

namespace ridgeline {

namespace {

constexpr size_t kSampleBlocks = kSampleBlock / kBlockRows;
// Blocks of the highest bounds that are computed to find what the k largest outputs surely have: nearly always they have these.
constexpr size_t tried(size_t k) { return k + k / 4 + 3; }
constexpr size_t kMostTried = tried(static_cast<size_t>(Screen::kMostKept));
// A screen saves a third of the product or more. A block that is computed afterwards comes from memory by itself: it costs about twice what it
// costs among all where one token reads them, and four times that where several share the reading. So much of all, in the mean over steps, of
// which the last counts for a sixteenth, and alone behind a pause.
constexpr double kMostShare = 1.0 / 6.0, kMostShareOfSeveral = 1.0 / 12.0, kWeight = 1.0 / 16.0;
constexpr size_t kLeastPause = 8, kMostPause = 256;
// Bounds of all blocks of a token cost more than the outputs of so few of them, a part of all.
constexpr size_t kFewOf = 32;
// And those of one token alone cost more than so many blocks of it.
constexpr size_t kFewBlocks = 64;

}  // namespace

void Screen::Copies::resize(size_t tokens, size_t k) {
    codes.resize(tokens * k), scales.resize(tokens * (k / kCodeGroup)), sums.resize(tokens * (k / 16));
}

void Screen::Copies::put(size_t place, const Codes& token, size_t k) {
    std::copy_n(token.codes, k, &codes[place * k]);
    std::copy_n(token.scales, k / kCodeGroup, &scales[place * (k / kCodeGroup)]);
    std::copy_n(token.sums, k / 16, &sums[place * (k / 16)]);
}

bool Screen::leaves_few(Mask mask) const {
    if (mask == nullptr) return false;
    size_t left = blocks() / kFewOf;
    for (size_t block = 0; block < blocks(); block += 2) {
        const uint32_t word = mask[block / 2];
        if (word == 0) continue;
        const size_t here = ((word & 0xffffu) != 0) + (word >> 16 != 0);
        if (here > left) return false;
        left -= here;
    }
    return true;
}

bool Screen::begin(size_t tokens, size_t each, const int32_t* keep, const Mask* masks) {
    if (tokens == 0) return false;
    for (size_t token = 0; token < tokens && keep != nullptr; ++token)
        if (keep[token] < 1 || keep[token] > kMostKept) return false;
    tokens_ = tokens, each_ = each, chunks_ = (blocks() + each - 1) / each, keep_ = keep;
    if (masks == nullptr)
        masks_.assign(tokens, nullptr);
    else
        masks_.assign(masks, masks + tokens);
    few_.resize(tokens), place_.resize(tokens), bounded_ = 0;
    for (size_t token = 0; token < tokens; ++token) {
        few_[token] = leaves_few(mask(token)), place_[token] = bounded_;
        bounded_ += few_[token] == 0;
    }
    if (pause_ > 0 && !few()) {
        --pause_, ++counts_.skipped;
        return false;
    }
    fits_ = channels_.due() && !few();
    if (fits_) channels_.choose(kernels_, matrix_), rows_.resize(blocks() * kBlockRows);
    sizes_.resize(bounded_), thresholds_.resize(tokens);
    offsets_.resize(bounded_ * (matrix_.k / 16));
    bounds_.resize(bounded_ * blocks());
    highest_.resize(bounded_ * chunks_), order_.resize(tokens * chunks_);
    best_values_.assign(tokens * chunks_, -INFINITY), best_ids_.assign(tokens * chunks_, INT32_MAX);
    computed_.assign(chunks_, 0), open_.assign(tokens, 1), unsettled_ = tokens;
    if (bounded_ < tokens) copies_.resize(bounded_, matrix_.k);
    for (Gathered& each : gathered_) each.x.resize(tokens, matrix_.k), each.outputs.resize(tokens * kBlockRows);
    return true;
}

void Screen::end() {
    size_t computed = 0;
    for (const size_t each : computed_) computed += each;
    const size_t pairs = blocks() * tokens_;
    if (few()) return;
    for (size_t token = 0; token < tokens_; ++token) channels_.see(this->token(token), matrix_.k);
    counts_.steps += 1, counts_.pairs += pairs, counts_.computed += computed;
    const double share = static_cast<double>(computed) / static_cast<double>(pairs);
    share_ = last_pause_ > 0 ? share : share_ + (share - share_) * kWeight;
    if (share_ <= (tokens_ == 1 ? kMostShare : kMostShareOfSeveral)) return void(last_pause_ = 0);
    pause_ = last_pause_ = std::clamp(2 * last_pause_, kLeastPause, kMostPause);
}

void Screen::best(int32_t* ids) const {
    for (size_t token = 0; token < tokens_; ++token) ids[token] = best(token);
}

int32_t Screen::best(size_t token) const {
    const int32_t found = kernels_.sample->argmax_merge(&best_values_[token * chunks_], &best_ids_[token * chunks_], chunks_);
    return found == INT32_MAX ? 0 : found;  // of a mask that allows nothing, as `argmax` says it
}

void Screen::look_again(size_t token, Mask mask, uint8_t* scratch) {
    masks_[token] = mask;
    std::fill_n(&best_values_[token * chunks_], chunks_, -INFINITY);
    std::fill_n(&best_ids_[token * chunks_], chunks_, INT32_MAX);
    if (take_few(token, scratch)) return settle(token);
    threshold(token, scratch);
}

bool Screen::take_few(size_t token, uint8_t* scratch) {
    size_t left[kFewBlocks], count = 0;
    for (size_t block = 0; block < blocks(); ++block) {
        if (allowed(mask(token), block) == 0) continue;
        if (count == kFewBlocks) return false;
        left[count++] = block;
    }
    for (size_t i = 0; i < count; ++i) {
        const size_t first = left[i] * kBlockRows;
        float outputs[kBlockRows];
        kernels_.linear->multiply(matrix_, this->token(token), 1, {outputs - first, kBlockRows}, left[i], 1, scratch);
        kernels_.sample->forbid(mask(token), first, kBlockRows, outputs);
        take(token, left[i] / each_, first, outputs, columns_of(left[i], 1));
    }
    return true;
}

void Screen::measure(size_t token) {
    if (few_[token]) return;
    if (bounded_ < tokens_) copies_.put(place_[token], this->token(token), matrix_.k);
    kernels_.linear->measure(bounded(), matrix_.k, place_[token], shared());
}

void Screen::bound(size_t chunk, uint8_t* scratch) {
    const size_t first = chunk * each_, count = std::min(each_, blocks() - first);
    Screening of = shared();
    if (fits_) kernels_.linear->fit(matrix_, of.channels, first, count, rows_.data(), scratch);
    of.bounds = &bounds_[first * bounded_], of.best = &highest_[chunk * bounded_];
    if (!kernels_.linear->screen(matrix_, bounded(), of, first, count, scratch)) std::fill_n(of.best, bounded_, NAN);
}

size_t Screen::columns_of(size_t block, size_t count) const { return std::min(matrix_.n, (block + count) * kBlockRows) - block * kBlockRows; }

Codes Screen::token(size_t token) const {
    const size_t groups = matrix_.k / kCodeGroup;
    return {x_.codes + token * x_.stride, x_.scales + token * groups, x_.sums + token * groups * 2, x_.stride};
}

void Screen::list_open(Gathered& of) const {
    of.open.clear();
    for (size_t token = 0; token < tokens_; ++token)
        if (open_[token] != 0) of.open.push_back(token);
}

void Screen::gather(size_t block, Gathered& of, uint8_t* scratch) const {
    of.tokens.clear();
    for (const size_t token : of.open)
        if (wanted(block, token)) of.tokens.push_back(token);
    const size_t count = of.tokens.size();
    if (count == 0) return;
    const Product to = {of.outputs.data() - block * kBlockRows, kBlockRows};
    if (of.tokens.back() - of.tokens.front() + 1 == count)
        return kernels_.linear->multiply(matrix_, token(of.tokens.front()), count, to, block, 1, scratch);
    for (size_t i = 0; i < count; ++i) of.x.put(i, token(of.tokens[i]), matrix_.k);
    kernels_.linear->multiply(matrix_, of.x.all(matrix_.k), count, to, block, 1, scratch);
}

// The least of those found is on top of a heap, the chunk of the highest bound on top of another one: few of all chunks are looked at.
size_t Screen::highest_bounds(size_t token, size_t most, Bound* found) {
    const auto lower = [](const Bound& a, const Bound& b) { return a.value > b.value; };
    const Mask mask = this->mask(token);
    uint32_t *chunks = &order_[token * chunks_], *last = chunks + chunks_;
    const auto less = [&](uint32_t a, uint32_t b) { return highest_of(a, token) < highest_of(b, token); };
    std::iota(chunks, last, 0u);
    std::make_heap(chunks, last, less);
    size_t count = 0;
    for (; last > chunks; --last) {
        if (count == most && highest_of(*chunks, token) <= found[0].value) break;
        std::pop_heap(chunks, last, less);
        const size_t first = last[-1] * each_, end = std::min(first + each_, blocks());
        for (size_t block = first; block < end; ++block) {
            if (allowed(mask, block) == 0) continue;
            const float value = bound_of(block, token);
            if (count == most) {
                if (value <= found[0].value) continue;
                std::pop_heap(found, found + count--, lower);
            }
            found[count++] = {value, block};
            std::push_heap(found, found + count, lower);
        }
    }
    return count;
}

// As many outputs as are needed are no less than this, in eighths, less what underflow takes from both sums: products of scales lose 2^-150,
// times less than 2^19 of a group here and 2^16 in eighths there, sums another 2^-150. So no output of a block whose bound is below it is one
// of the largest, nor equals the least of them. NaN, which no bound is below, where bounds may not be used.
void Screen::threshold(size_t token, uint8_t* scratch) {
    if (few_[token]) return;
    for (size_t chunk = 0; chunk < chunks_; ++chunk)
        if (std::isnan(highest_of(chunk, token))) return void(thresholds_[token] = NAN);
    Bound found[kMostTried];
    float outputs[kMostTried * kBlockRows];
    const size_t keep = keep_ == nullptr ? 1 : static_cast<size_t>(keep_[token]), blocks = highest_bounds(token, tried(keep), found);
    size_t count = 0;
    for (size_t i = 0; i < blocks; ++i) {
        const Product to = {outputs + count - found[i].block * kBlockRows, kBlockRows};
        kernels_.linear->multiply(matrix_, this->token(token), 1, to, found[i].block, 1, scratch);
        const uint32_t bits = allowed(mask(token), found[i].block);
        const float* made = outputs + count;
        for (size_t column = 0; column < columns_of(found[i].block, 1); ++column)
            if (bits >> column & 1) outputs[count++] = made[column];
    }
    float least = -INFINITY;
    if (keep <= count) {
        std::nth_element(outputs, outputs + keep - 1, outputs + count, std::greater<float>());
        least = outputs[keep - 1];
    }
    thresholds_[token] = least / 8.0f - static_cast<float>(matrix_.k / kCodeGroup) * (FLT_MIN / 16.0f);
}

void Screen::find(size_t chunk, size_t thread, uint8_t* scratch) {
    Gathered& of = gathered_[thread];
    const size_t first = chunk * each_, last = std::min(first + each_, blocks());
    list_open(of);
    for (size_t block = first; block < last; ++block) {
        gather(block, of, scratch);
        computed_[chunk] += of.tokens.size();
        for (size_t i = 0; i < of.tokens.size(); ++i) {
            kernels_.sample->forbid(mask(of.tokens[i]), block * kBlockRows, kBlockRows, &of.outputs[i * kBlockRows]);
            take(of.tokens[i], chunk, block * kBlockRows, &of.outputs[i * kBlockRows], columns_of(block, 1));
        }
    }
}

void Screen::take(size_t token, size_t chunk, size_t column, const float* outputs, size_t columns) {
    float value, &best = best_values_[token * chunks_ + chunk];
    int32_t found, &id = best_ids_[token * chunks_ + chunk];
    kernels_.sample->argmax_slice(outputs, column, columns, &value, &found);
    if (id == INT32_MAX || value > best || (std::isnan(value) && !std::isnan(best))) best = value, id = found;
}

// What a sampler with top-k makes of it is what it makes of whole rows: those that it keeps, and all that equal the last of them, are here with
// their bits, the rest is below. Largest, order and equals are the same, sums pass over what is cut off, and noise is a function of the id.
void Screen::write(size_t chunk, const Product& to, float* maxima, size_t thread, uint8_t* scratch) {
    const size_t row = (matrix_.n + kSampleBlock - 1) / kSampleBlock, last = std::min((chunk + 1) * each_, blocks());
    list_open(gathered_[thread]);
    for (size_t first = chunk * each_; first < last; first += kSampleBlocks) {
        const size_t count = std::min(kSampleBlocks, last - first), column = first * kBlockRows;
        computed_[chunk] += write_outputs(first, count, to, gathered_[thread], scratch);
        for (size_t token = 0; token < tokens_; ++token) {
            float *out = to.out + token * to.stride, *maximum = maxima + token * row + column / kSampleBlock;
            bool any = false;
            for (size_t block = first; block < first + count; ++block) any |= wanted(block, token);
            *maximum = -INFINITY;
            if (!any) continue;
            for (size_t block = first; block < first + count; ++block) {
                const size_t columns = columns_of(block, 1);
                if (!wanted(block, token))
                    std::fill_n(out + block * kBlockRows, columns, -INFINITY);
                else
                    kernels_.sample->forbid(mask(token), block * kBlockRows, columns, out + block * kBlockRows);
            }
            kernels_.sample->maxima(out + column, columns_of(first, count), maximum);
        }
    }
}

// One token reads blocks that follow each other at once.
size_t Screen::write_outputs(size_t first, size_t count, const Product& to, Gathered& of, uint8_t* scratch) const {
    size_t computed = 0;
    for (size_t block = first; block < first + count;) {
        size_t end = block + 1;
        if (tokens_ == 1) {
            while (end < first + count && wanted(end, 0) == wanted(block, 0)) ++end;
            if (wanted(block, 0)) kernels_.linear->multiply(matrix_, token(0), 1, to, block, end - block, scratch), computed += end - block;
        } else {
            gather(block, of, scratch);
            computed += of.tokens.size();
            for (size_t i = 0; i < of.tokens.size(); ++i)
                std::copy_n(&of.outputs[i * kBlockRows], columns_of(block, 1), to.out + of.tokens[i] * to.stride + block * kBlockRows);
        }
        block = end;
    }
    return computed;
}

}  // namespace ridgeline
