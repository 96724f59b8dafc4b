// Attention over the paged KV cache (`Attention`, `KVLayer` of runtime/ops.def), as one ISA level offers it. Memory belongs to the caller.
#pragma once

#include "runtime/ops.h"

namespace ridgeline {

constexpr size_t kSplit = 256;           // positions of a KV split: split s holds 256 s … 256 s + 255
constexpr size_t kAttentionScratch = 512 << 10;  // bytes of scratch that a thread hands to every call

// One unit of work: queries of one row over some splits, for one KV head (all its query heads together).
struct AttentionItem {
    int32_t row, kv_head;
    int32_t first_token, tokens;         // tokens of the step, all of `row`
    int32_t first_split, splits;
    int32_t partial;                     // float at which its partial results begin, or -1: it covers all splits and writes the output itself
};

struct AttentionKernels {
    // Cuts a step into items of about equal work for `threads` threads, heavy ones first; returns how many (at most `capacity`, which is
    // at least rows * KV heads), and how many floats of partial results they need. Items of the same tokens and KV head stand together,
    // splits ascending. Which items there are never changes a bit of the output.
    size_t (*items)(const Attention& op, const Step& step, size_t threads, AttentionItem* items, size_t capacity, size_t* partial_floats);

    // One item: reads q [tokens, heads * head_dim], writes its part of `partials`, or of out [tokens, heads * value_dim].
    void (*attend)(const Attention& op, const Step& step, const AttentionItem& item, float* partials, uint8_t* scratch);

    // Merges the partial results of all items of a step, split by split ascending; items without any are passed over.
    void (*merge)(const Attention& op, const Step& step, const AttentionItem* items, size_t count, const float* partials);
};

}  // namespace ridgeline
