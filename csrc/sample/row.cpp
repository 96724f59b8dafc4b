// A row of logits in blocks: its largest, and the edits that features make before temperature.
#include <math.h>
#include <string.h>

#include "sample/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kMaskWords = kBlock / 32;

// A block that may be written.
float* own(BlockRow& row, size_t block) {
    float* copy = row.copies + block * kBlock;
    if (row.blocks[block] != copy) {
        memcpy(copy, row.blocks[block], kBlock * sizeof(float));
        row.blocks[block] = copy;
    }
    return copy;
}

float get(const BlockRow& row, int32_t id) {
    const size_t place = static_cast<size_t>(id);
    return row.blocks[place / kBlock][place % kBlock];
}

void set(BlockRow& row, int32_t id, float value) {
    const size_t place = static_cast<size_t>(id);
    own(row, place / kBlock)[place % kBlock] = value;
}

void look_again(BlockRow& row, const int32_t* ids, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const size_t block = static_cast<size_t>(ids[i]) / kBlock;
        row.maxima[block] = largest(row.blocks[block], kBlock);
    }
}

void allow(BlockRow& row, const uint32_t* mask) {
    const size_t words = (row.vocab + 31) / 32;
    for (size_t b = 0; b < row.count; ++b) {
        uint32_t bits[kMaskWords] = {};
        const size_t left = words - b * kMaskWords;
        memcpy(bits, mask + b * kMaskWords, (left < kMaskWords ? left : kMaskWords) * sizeof(uint32_t));
        uint32_t any = 0, all = UINT32_MAX;
        for (size_t w = 0; w < kMaskWords; ++w) any |= bits[w], all &= bits[w];
        if (all == UINT32_MAX) continue;
        if (any == 0) {
            row.blocks[b] = row.nothing;
            row.maxima[b] = -INFINITY;
            continue;
        }
        float* x = own(row, b);
        for (size_t w = 0; w < kMaskWords; ++w)
            for (size_t bit = 0; bit < 32; ++bit) x[w * 32 + bit] = (bits[w] >> bit & 1) != 0 ? x[w * 32 + bit] : -INFINITY;
        row.maxima[b] = largest(x, kBlock);
    }
}

// Takes ids out, unless nothing would be left.
void ban(BlockRow& row, const int32_t* ids, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        row.list[i] = get(row, ids[i]);
        set(row, ids[i], -INFINITY);
    }
    look_again(row, ids, count);
    for (size_t b = 0; b < row.count; ++b)
        if (row.maxima[b] != -INFINITY) return;
    for (size_t i = 0; i < count; ++i) set(row, ids[i], row.list[i]);
    look_again(row, ids, count);
}

void add_bias(BlockRow& row, const int32_t* ids, const double* bias, size_t count) {
    for (size_t i = 0; i < count; ++i) set(row, ids[i], static_cast<float>(static_cast<double>(get(row, ids[i])) + bias[i]));
    look_again(row, ids, count);
}

void penalise(BlockRow& row, const SampleRow& asked) {
    for (size_t i = 0; i < asked.seen_count; ++i) {
        const double x = static_cast<double>(get(row, asked.seen[i])), times = asked.times[i];
        const double repeated = x > 0.0 ? x / asked.repetition : x * asked.repetition;
        const double present = times > 0.0 ? 1.0 : 0.0;
        set(row, asked.seen[i], static_cast<float>(repeated - (asked.frequency * times + asked.presence * present)));
    }
    look_again(row, asked.seen, asked.seen_count);
}

bool inside(const int32_t* ids, uint64_t count, size_t vocab) {
    bool all = count <= vocab;
    for (uint64_t i = 0; all && i < count; ++i) all = static_cast<uint32_t>(ids[i]) < vocab;
    return all;
}

}  // namespace

float largest(const float* x, size_t count) {
    Vec most = all(-INFINITY), wrong = zero();
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Vec v = load(x + i);
        most = larger(v, most);
        wrong = where_nan(v, v, wrong);
    }
    if (i < count) {
        const Vec v = load_first(x + i, count - i, -INFINITY);
        most = larger(v, most);
        wrong = where_nan(v, v, wrong);
    }
    float lanes[kLanes];
    store(lanes, wrong);
    uint32_t any = 0;
    for (size_t i = 0; i < kLanes; ++i) any |= lanes[i] != lanes[i];
    return any ? NAN : largest_of(most);
}

size_t place_of(const float* x, float value) {
    size_t i = 0;
    if (isnan(value))
        while (!isnan(x[i])) ++i;
    else
        while (x[i] != value) ++i;
    return i;
}

BlockRow split(const SampleRow& asked, size_t vocab, void* scratch) {
    const size_t count = (vocab + kBlock - 1) / kBlock;
    BlockRow row;
    row.count = count;
    row.vocab = vocab;
    row.blocks = static_cast<const float**>(scratch);
    row.copies = reinterpret_cast<float*>(row.blocks + count);
    row.nothing = row.copies + count * kBlock;
    row.list = row.nothing + kBlock;
    row.maxima = row.list + (count + 1) * kBlock;
    for (size_t i = 0; i < kBlock; ++i) row.nothing[i] = -INFINITY;
    for (size_t b = 0; b < count; ++b) row.blocks[b] = asked.logits + b * kBlock;
    const size_t rest = vocab % kBlock;
    if (rest != 0) {
        float* last = row.copies + (count - 1) * kBlock;
        memcpy(last, row.nothing, kBlock * sizeof(float));
        memcpy(last, asked.logits + (count - 1) * kBlock, rest * sizeof(float));
        row.blocks[count - 1] = last;
    }
    if (asked.maxima != nullptr)
        memcpy(row.maxima, asked.maxima, count * sizeof(float));
    else
        for (size_t b = 0; b < count; ++b) row.maxima[b] = largest(row.blocks[b], kBlock);
    return row;
}

Best best_of(const BlockRow& row) {
    size_t where = 0;
    for (size_t b = 1; b < row.count && !isnan(row.maxima[where]); ++b)
        if (row.maxima[b] > row.maxima[where] || isnan(row.maxima[b])) where = b;
    const float value = row.maxima[where];
    return {value, static_cast<int32_t>(where * kBlock + place_of(row.blocks[where], value))};
}

bool edit(BlockRow& row, const SampleRow& asked) {
    if (!inside(asked.completing, asked.completing_count, row.vocab) || !inside(asked.stops, asked.stops_count, row.vocab) ||
        !inside(asked.biased, asked.bias_count, row.vocab) || !inside(asked.seen, asked.seen_count, row.vocab))
        return false;
    if (asked.allowed != nullptr) allow(row, asked.allowed);
    if (asked.completing_count > 0) ban(row, asked.completing, asked.completing_count);
    if (asked.stops_count > 0) ban(row, asked.stops, asked.stops_count);
    add_bias(row, asked.biased, asked.bias, asked.bias_count);
    penalise(row, asked);
    return true;
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
