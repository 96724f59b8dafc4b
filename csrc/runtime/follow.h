// Rows that follow grammars: their places are moved, asked and written out as masks by threads of the step, through functions of the library
// that matches grammars (parser/llguidance.h of release 1.9). Python finds these and owns the places.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

// As Python has them: 64-bit numbers in this order.
struct GrammarCalls {
    int32_t (*consume)(void* matcher, const uint32_t* ids, size_t count);
    int32_t (*validate)(void* matcher, const uint32_t* ids, size_t count);  // how many of the ids may come; less than 0: an error
    int32_t (*mask)(void* matcher, uint32_t* mask, size_t bytes);
    bool (*stopped)(const void* matcher);
    uint64_t ids, bytes, room;           // of the vocabulary; that it takes of a mask; that a mask has
};

enum FollowerState : int64_t { kLost = -1, kUnmasked, kMasked };

// A selected row's place. What is written is said by `state` and `nanoseconds`.
struct Follower {
    void* matcher;                       // null: the row follows no grammar
    uint32_t* mask;                      // [room]
    int64_t token;                       // the row has sampled it and its place has yet to move behind it; -1: none
    int64_t asks;                        // who chooses asks about its choice, and needs no mask where that may come
    int64_t state;                       // whether the mask was written; what is lost cannot go on, and has a mask of all ids
    int64_t nanoseconds;                 // of CPU time
    int64_t left;                        // ids that the mask has
};

// Moves the place behind what the row has sampled.
void move_place(const GrammarCalls& calls, Follower& row);
// Writes what may come next.
void write_mask(const GrammarCalls& calls, Follower& row);
// Whether an id may come next; false where only a mask can tell.
bool takes(const GrammarCalls& calls, Follower& row, int32_t id);

}  // namespace ridgeline
