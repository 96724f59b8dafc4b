// What changes from step to step: sizes, and addresses of the step's inputs. Built by Python for every step; see compute/graph.py.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

constexpr int kMaxGroups = 32;           // KV groups of a model

struct Step {
    size_t tokens, rows, selected;
    const int32_t* ids;                  // [tokens]
    const int32_t* positions;            // [tokens]
    const int32_t* row_of_token;         // [tokens]
    const int32_t* cu_q;                 // [rows + 1]
    const int32_t* kv_len;               // [rows], this step's tokens included
    const int32_t* select;               // [selected]
    const int32_t* adapter;              // [tokens]: slots of adapters, -1 for none; null where no row has one
    const int32_t* state_rows;           // [rows]: where recurrent states of each row lie; null of a model without
    size_t table_width;                  // blocks of a row in every table
    const int32_t* tables[kMaxGroups];   // [rows, table_width]
    const int64_t* slots[kMaxGroups];    // [tokens]
};

}  // namespace ridgeline
