// What the sources of the attention family share: who sees what, and how scratch and partial results are sized. One copy per level.
#pragma once

#include "attention/attention.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

size_t attention_items(const Attention& op, const Step& step, size_t threads, AttentionItem* items, size_t capacity, size_t* partial_floats);

namespace {

constexpr size_t kScoreStride = kSplit + 16;  // floats from row to row of scores: whole vectors, and room behind the last key
constexpr size_t kNearFloats = 4096;          // of a tile of keys or values in fp32 that stays in the first-level cache
constexpr size_t kFarFloats = 16384;          // of one that stays in the second-level cache
constexpr size_t kFewBytes = 13 << 10;        // of keys or values as the cache has them: less than half of the first-level cache
constexpr size_t kKeyBlock = 6;               // keys of a tile come in whole blocks of so many

// Query rows are (token, head of the KV group), tokens first. What one of them needs in scratch and in partial results.
struct Shape {
    size_t group;                        // query heads per KV head
    size_t width;                        // floats of a head, padded with zeros to whole vectors
    size_t value_width;                  // of a value, whole vectors; sums have room for `width`

    explicit Shape(const Attention& op)
        : group(op.heads / op.cache.kv_heads), width((op.cache.head_dim + 15) / 16 * 16), value_width((op.value_dim + 15) / 16 * 16) {}
    size_t row_bytes() const { return (3 * width + kScoreStride + 6) * 4; }
    size_t near_keys() const { return (kNearFloats / width > kKeyBlock ? kNearFloats / width : kKeyBlock) / kKeyBlock * kKeyBlock; }
    // Keys or values as the cache has them, of which two lots stay in the first-level cache.
    size_t few_keys(size_t record_bytes) const { return (kFewBytes / record_bytes > kKeyBlock ? kFewBytes / record_bytes : kKeyBlock) / kKeyBlock * kKeyBlock; }
    size_t far_keys() const { return kFarFloats / width > kKeyBlock ? kFarFloats / width : kKeyBlock; }
    size_t tile_bytes() const { return far_keys() * width * 4; }
    size_t partial_floats() const { return width + 2; }
    // Rows that scratch has room for.
    size_t most_rows() const { return (kAttentionScratch - tile_bytes() - 32 * kScoreStride - 1024) / row_bytes(); }
};

// Positions first … last - 1.
struct Seen {
    int64_t first, last;
    bool empty() const { return first >= last; }
};

// What a query at `position` sees of the positions from `base` on, counted from there; at most a split's.
inline Seen seen(const Attention& op, int64_t position, int64_t base) {
    const int64_t earliest = op.window > 0 ? position - op.window + 1 - base : -base, end = position + 1 - base;
    return {earliest > 0 ? earliest : 0, end < static_cast<int64_t>(kSplit) ? end : static_cast<int64_t>(kSplit)};
}

// The last position that a token's query sees: its own, or its row's last.
inline int64_t position_of(const Attention& op, const Step& step, int32_t row, int64_t token) {
    return op.causal ? step.kv_len[row] - (step.cu_q[row + 1] - token) : step.kv_len[row] - 1;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
