// What products of a few tokens share that are made straight from packed records: who the tokens are, how records come from memory, and a quad of
// them with activations.
#pragma once

#include "linear/codes.h"
#include "runtime/platform.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Bytes between what tiles work on and what is fetched from memory for them. Between the record in work of one stream and the one that is fetched
// from memory; and the one that is fetched from the second-level cache into the first, two records away where they are large.
constexpr size_t kAhead = 4096, kOneAhead = 2048, kOneNear = 1024;
// One token waits for memory and reads kReadStreams blocks in turn, record by record: a core has more lines of several streams on their way
// than of one. Each has its share of kInFlight bytes fetched ahead, at a level without many lines on their way half of it where records take
// few instructions a byte. Of several tokens each has kFewAhead: others may be in work first.
constexpr size_t kFewAhead = 3072;
// Where several streams come in two steps: bytes from the record in work to what goes into the second-level cache, and from there into the first.
// Those of one token are fastest there with what the processor fetches by itself.
constexpr size_t kStreamAhead = 5120, kStreamNear = 1536;
const bool kTwoSteps = kFetchLevel == 3 && fetches_in_two_steps();
constexpr size_t kLargeRecord = 512;
template <size_t kBytes, int kStreams>
constexpr size_t kFar = kInFlight / kStreams / (kBytes >= kLargeRecord && kReadStreams == 2 ? 2 : 1);

// Activations of up to M tokens, from the first of them.
struct Tokens {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
    size_t stride, groups;               // from token to token: codes; scales, and half of the sums
    const uint32_t* starts = nullptr;    // [groups, 4] of a format that sums records its own way; [parts, kSpanRecordTokens] where kBegun
    bool stepped = false;
};

inline Tokens tokens(const Codes& x, size_t k, size_t from) {
    const size_t groups = k / kCodeGroup;
    return {x.codes + from * x.stride, x.scales + from * groups, x.sums + from * groups * 2, x.stride, groups, nullptr, x.stepped};
}
inline Tokens tokens_from(const Tokens& x, size_t from) {
    return {x.codes + from * x.stride, x.scales + from * x.groups, x.sums + from * x.groups * 2, x.stride, x.groups, nullptr, x.stepped};
}

// Of one stream records come from memory into the second-level cache, which bears more lines on their way than the first, and from there into
// the first. Of several the processor fetches the rest by itself, or they come into the first at once. A call that is not inlined would be dropped
// by compilers, as one without effect.
template <size_t kBytes, int kStreams, int M = 1>
__attribute__((always_inline)) inline void prefetch_record(const uint8_t* record) {
    if constexpr (kStreams == 1) {
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kOneAhead + line, 0, 2);
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kOneNear + line, 0, 3);
    } else if (kFetchLevel == 3 && kTwoSteps) {
        if (M == 1) return;
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kStreamAhead + line, 0, 2);
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kStreamNear + line, 0, 3);
    } else {
        constexpr size_t kDistance = M == 1 ? kFar<kBytes, kStreams> : kFewAhead;
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kDistance + line, 0, kFetchLevel);
    }
}

// How many of kBlocks blocks that M tokens read in turn are in work at once: their products share the reading of activations.
template <int M, int kBlocks>
constexpr int kAtOnce = kBlocks <= kBlocksAtOnce<M> ? kBlocks : kAtOnce<M, kBlocks / 2>;

// Where the activations of M tokens begin. Known to the compiler as sums they would be made ahead for all quads, and put on the stack.
template <int M, bool kShared>
inline void place_tokens(const int8_t* codes, size_t stride, const int8_t** of) {
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        of[i] = codes + i * stride;
        if (kShared) __asm__("" : "+r"(of[i]));
    }
}

// Quad t of kBlocks records, `apart` bytes from each other, and of M tokens onto sums of products, those of the first record first.
template <class Coding, int M, int kBlocks>
inline void add_quad(const uint8_t* record, size_t apart, size_t t, const int8_t* const* of, Pairs* pairs) {
    if constexpr (kBlocks == 1) {
        const Quad w = Coding::quad(record, t);          // an array of two registers each would be kept in memory
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = products<Coding::kBits>(pairs[i], w, of[i] + 4 * t);
        return;
    }
    Quad w[kBlocks];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kBlocks; ++i) w[i] = Coding::quad(record + i * apart, t);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i)
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kBlocks; ++j) pairs[j * M + i] = products<Coding::kBits>(pairs[j * M + i], w[j], of[i] + 4 * t);
}

inline void write(Vec sum, float* out, size_t columns) { columns == kBlockRows ? store(out, sum) : store_first(out, sum, columns); }

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
