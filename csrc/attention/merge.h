// Splits of keys merged in order: into a row's total as its splits are computed, or from the partial results of several items.
#pragma once

#include <float.h>

#include "attention/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// (total, its greatest score and weight) becomes what it is with one split more.
inline void merge_row(float* total, float* total_peak, float* total_weight, const float* sums, float peak, float weight, size_t width) {
    const float greater = peak > *total_peak ? peak : *total_peak;
    float fades[kLanes] = {*total_peak - greater, peak - greater};
    store(fades, exponential(load(fades)));
    const Vec old = all(fades[0]), fresh = all(fades[1]);
    for (size_t d = 0; d < width; d += kLanes) store(total + d, fma(load(sums + d), fresh, load(total + d) * old));
    *total_weight = fmaf(weight, fades[1], *total_weight * fades[0]);
    *total_peak = greater;
}

inline void put_row(const float* total, float weight, size_t width, float* out) {
    for (size_t d = 0; d < width; d += kLanes) {
        const Vec x = load(total + d) / all(weight), y = where_nan(x, all(NAN), x);
        width - d < kLanes ? store_first(out + d, y, width - d) : store(out + d, y);
    }
}

// A head's sink joins last: one score more, without a value.
inline void add_sink(float* total, float* total_peak, float* total_weight, float sink, size_t width) {
    const float greater = sink > *total_peak ? sink : *total_peak;
    float fades[kLanes] = {*total_peak - greater, sink - greater};
    store(fades, exponential(load(fades)));
    const Vec old = all(fades[0]);
    for (size_t d = 0; d < width; d += kLanes) store(total + d, load(total + d) * old);
    *total_weight = *total_weight * fades[0] + fades[1];
    *total_peak = greater;
}

// One query row over the items items[0 … count - 1], which follow each other in their splits.
inline void merge_items(const Attention& op, const Step& step, const AttentionItem* items, size_t count, size_t row, const float* partials) {
    const Shape shape(op);
    const size_t rows = static_cast<size_t>(items->tokens) * shape.group, token = static_cast<size_t>(items->first_token) + row / shape.group;
    const int64_t position = position_of(op, step, items->row, static_cast<int64_t>(token));
    const size_t head = static_cast<size_t>(items->kv_head) * shape.group + row % shape.group;
    float* mine = op.out + (token * op.heads + head) * op.value_dim;
    // The width comes in slices, so that a total of any width fits on the stack.
    constexpr size_t kSlice = 512;
    for (size_t d = 0; d < shape.value_width; d += kSlice) {
        const size_t slice = shape.value_width - d < kSlice ? shape.value_width - d : kSlice;
        float total[kSlice], peak = -FLT_MAX, weight = 0.0f;
        memset(total, 0, slice * sizeof(float));
        for (const AttentionItem* item = items; item < items + count; ++item)
            for (int32_t split = 0; split < item->splits; ++split) {
                if (seen(op, position, static_cast<int64_t>(item->first_split + split) * static_cast<int64_t>(kSplit)).empty()) continue;
                const float* part = partials + item->partial + static_cast<size_t>(split) * rows * shape.partial_floats();
                const float* peaks = part + rows * shape.width;
                merge_row(total, &peak, &weight, part + row * shape.width + d, peaks[row], peaks[rows + row], slice);
            }
        if (op.sinks != nullptr) add_sink(total, &peak, &weight, op.sinks[head], slice);
        put_row(total, weight, (op.value_dim - d < slice ? op.value_dim - d : slice), mine + d);
    }
}

inline void merge(const Attention& op, const Step& step, const AttentionItem* items, size_t count, const float* partials) {
    const Shape shape(op);
    for (size_t i = 0; i < count;) {
        size_t end = i + 1;
        while (end < count && items[end].row == items[i].row && items[end].kv_head == items[i].kv_head && items[end].first_token == items[i].first_token) ++end;
        if (items[i].partial >= 0)
            for (size_t row = 0; row < static_cast<size_t>(items[i].tokens) * shape.group; ++row) merge_items(op, step, items + i, end - i, row, partials);
        i = end;
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
