// What a row asks of the sampler, as one table: C++ makes a struct of it, and Python a numpy dtype (compute/cpu/sampling.py). A field is
// filled from the attribute of its name of `Sampling` or `RowParams` (core/params.py): a new option is one line here.
//
//   int64_t, uint64_t, double    numbers; None is -1
//   Ids                          a tuple of ids; None has no address
//   Biases                       a tuple of (id, number)
//   Words                        a tuple of tuples of ids, as numbers: of each its length, then its ids
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

// Numbers that Python owns. 16 bytes, as two numbers of 8 in the record.
template <typename T>
struct List {
    const T* items;
    uint64_t count;
};

struct Bias {
    int64_t id;
    double bias;
};

struct Ids : List<int32_t> {};
struct Words : List<int32_t> {};
struct Biases : List<Bias> {};
struct Masks : List<uint32_t> {};

#define RIDGELINE_SAMPLE_OPTIONS(FIELD)                                                     \
    FIELD(uint64_t, seed)                /* what the noise is a function of */              \
    FIELD(uint64_t, choice)              /* below 2^32 */                                   \
    FIELD(int64_t, prompt_tokens)                                                           \
    FIELD(double, temperature)           /* 0: greedy */                                    \
    FIELD(int64_t, top_k)                /* outside 1 … vocab - 1: off */                   \
    FIELD(double, top_p)                 /* 1: off */                                       \
    FIELD(double, min_p)                 /* 0: off */                                       \
    FIELD(Ids, allowed_ids)              /* ascending */                                    \
    FIELD(Words, bad_words)                                                                 \
    FIELD(int64_t, min_tokens)                                                              \
    FIELD(Ids, banned_until)             /* may not be sampled before min_tokens outputs */ \
    FIELD(Biases, logit_bias)            /* ids differ from each other */                   \
    FIELD(double, repetition_penalty)                                                       \
    FIELD(double, frequency_penalty)                                                        \
    FIELD(double, presence_penalty)                                                         \
    FIELD(int64_t, logprobs)             /* so many best ids; -1: none are asked for */

// What changes from step to step. The history is that in front of the row's first sampling position, and empty where nothing looks back.
#define RIDGELINE_SAMPLE_PLACE(FIELD)                                                       \
    FIELD(uint64_t, first)               /* of its sampling positions among the step's */   \
    FIELD(uint64_t, count)               /* of its sampling positions, at least 1 */        \
    FIELD(uint64_t, position)            /* of the token that the first samples, below 2^32 - count */ \
    FIELD(Ids, ids)                      /* prompt and outputs */                           \
    FIELD(Ids, seen)                     /* of these each once */                           \
    FIELD(Ids, times)                    /* how often each of `seen` was an output */       \
    FIELD(Masks, masks)                  /* of its grammar, for each sampling position `count` words with a bit for each id; none: no grammar */ \
    FIELD(uint64_t, follower)            /* 0, or address of a `Follower` that asks (runtime/follow.h), of a row without filters and other edits */ \
    FIELD(uint64_t, calls)               /* of the `GrammarCalls` of that */

struct SampleRow {
#define RIDGELINE_FIELD(type, name) type name;
    RIDGELINE_SAMPLE_OPTIONS(RIDGELINE_FIELD)
    RIDGELINE_SAMPLE_PLACE(RIDGELINE_FIELD)
#undef RIDGELINE_FIELD
};

// A field as Python sees it.
struct SampleField {
    const char *kind, *name;
    size_t offset;
};

const SampleField kSampleFields[] = {
#define RIDGELINE_FIELD(type, name) {#type, #name, offsetof(SampleRow, name)},
    RIDGELINE_SAMPLE_OPTIONS(RIDGELINE_FIELD) RIDGELINE_SAMPLE_PLACE(RIDGELINE_FIELD)
#undef RIDGELINE_FIELD
};

}  // namespace ridgeline
