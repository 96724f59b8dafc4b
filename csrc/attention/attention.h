// The paged KV cache: writing to it and attention over it, as one ISA level offers them. Memory belongs to the caller.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/step.h"

namespace ridgeline {

enum KVType : int { kKVF32, kKVBF16, kKVInt8 };

constexpr size_t kSplit = 256;           // positions of a KV split: split s holds 256 s … 256 s + 255
constexpr size_t kAttentionScratch = 512 << 10;  // bytes of scratch that a thread hands to every call

// One layer's keys and values. A page holds for each KV head its `block_tokens` records one behind the other, so that what one head reads
// lies together: record (page, head, offset) of slot page * block_tokens + offset begins at page * page_bytes + head * head_bytes +
// offset * record_bytes. A record is `head_dim` numbers: fp32, bf16, or int8 followed by one fp32 scale.
struct KVLayer {
    int type;
    uint8_t* keys;
    uint8_t* values;
    size_t page_bytes, head_bytes, record_bytes;
    size_t kv_heads, head_dim, block_tokens;
};

struct Attention {
    KVLayer cache;
    size_t heads;
    int group;                           // KV group of the layer: which table and which slots
    float scale;
    int window;                          // 0: all earlier positions; else a query at p sees p - window < k <= p
    float softcap;                       // 0: none
};

// One unit of work: queries of one row over some splits, for one KV head (all its query heads together).
struct AttentionItem {
    int32_t row, kv_head;
    int32_t first_token, tokens;         // tokens of the step, all of `row`
    int32_t first_split, splits;
    int32_t partial;                     // float at which its partial results begin, or -1: it covers all splits and writes the output itself
};

struct AttentionKernels {
    // k, v [tokens, kv_heads * head_dim] fp32 of tokens first … first + count into their slots, rounded or quantised.
    void (*kv_write)(const KVLayer& cache, const float* k, const float* v, const int64_t* slots, size_t first, size_t count);

    // Cuts a step into items of about equal work for `threads` threads, heavy ones first; returns how many (at most `capacity`, which is
    // at least rows * KV heads), and how many floats of partial results they need. Items of the same tokens and KV head stand together,
    // splits ascending. Which items there are never changes a bit of the output.
    size_t (*items)(const Attention& op, const Step& step, size_t threads, AttentionItem* items, size_t capacity, size_t* partial_floats);

    // One item: reads q [tokens, heads * head_dim], writes its part of `partials`, or of out [tokens, heads * head_dim].
    void (*attend)(const Attention& op, const Step& step, const AttentionItem& item, const float* q, float* partials, float* out,
                   uint8_t* scratch);

    // Merges the partial results of all items of a step, split by split ascending; items without any are passed over.
    void (*merge)(const Attention& op, const Step& step, const AttentionItem* items, size_t count, const float* partials, float* out);
};

}  // namespace ridgeline
