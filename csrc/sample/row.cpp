// A row of logits in blocks, and its largest.
#include <math.h>
#include <string.h>

#include "sample/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

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

void forbid(Mask mask, size_t first, size_t count, float* logits) {
    const Vec none = all(-INFINITY);
    for (size_t i = 0; mask != nullptr && i < count; i += kLanes) {
        const uint32_t bits = mask[(first + i) / 32] >> (first + i) % 32 & 0xffffu;
        if (bits == 0xffffu) continue;
        if (i + kLanes <= count)
            store(logits + i, bits == 0 ? none : where_bits(bits, load(logits + i), none));
        else
            store_first(logits + i, where_bits(bits, load_first(logits + i, count - i), none), count - i);
    }
}

BlockRow split(const float* logits, const float* maxima, size_t vocab, void* scratch) {
    const size_t count = (vocab + kBlock - 1) / kBlock;
    BlockRow row;
    row.count = count;
    row.vocab = vocab;
    row.blocks = static_cast<const float**>(scratch);
    row.copies = reinterpret_cast<float*>(row.blocks + count);
    row.nothing = row.copies + count * kBlock;
    row.list = row.nothing + kBlock;
    row.ids = reinterpret_cast<int32_t*>(row.list + (count + 1) * kBlock);
    row.maxima = row.list + (2 * count + 1) * kBlock;
    for (size_t i = 0; i < kBlock; ++i) row.nothing[i] = -INFINITY;
    for (size_t b = 0; b < count; ++b) row.blocks[b] = logits + b * kBlock;
    const size_t rest = vocab % kBlock;
    if (rest != 0) {
        float* last = row.copies + (count - 1) * kBlock;
        memcpy(last, row.nothing, kBlock * sizeof(float));
        memcpy(last, logits + (count - 1) * kBlock, rest * sizeof(float));
        row.blocks[count - 1] = last;
    }
    if (maxima != nullptr)
        memcpy(row.maxima, maxima, count * sizeof(float));
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

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
