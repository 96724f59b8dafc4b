// Products with the matrices that rows have chosen. A row is a choice: row t * k + j is choice j of token t. Where each of k heads has its own
// matrix, row t * k + j is head j, and nothing is chosen.
//
// Rows of one expert are brought together, a tile at a time, so that a matrix is read once per tile. Which rows stand in a tile changes no bit:
// an output depends on its own row alone.
#pragma once

#include <atomic>
#include <vector>

#include "linear/linear.h"
#include "runtime/expert_store.h"

namespace ridgeline {

constexpr size_t kMostExperts = 1024;    // that a token may choose from

// Where experts lie that are not all in memory: a store, their group, and where in a slot the matrix begins. No store: all are.
struct Stored {
    ExpertStore* store = nullptr;
    size_t group = 0, place = 0;
};

struct ExpertsOp {
    Matrix weight;                       // of expert 0
    size_t expert_bytes;                 // from one expert's matrix to the next one's
    Codes codes;                         // quantised formats
    const float* x;                      // float formats
    const float* bias;                   // [experts, n], or null
    float* out;                          // [tokens * k, n]
    const int32_t* experts;              // [tokens, k]; null: 0 … k - 1 for every token
    size_t k;
    bool input_per_expert;                     // codes or x have a row per choice, not per token
    Stored stored;                       // where not all of them are in memory
};

// The same of each op that is such a product.
ExpertsOp experts(const LinearExperts& op);
ExpertsOp experts(const LinearExpertsCodes& op);
ExpertsOp experts(const LinearHeads& op);
ExpertsOp experts(const LinearHeadsCodes& op);

// Rows of one expert: `rows` [count], ascending.
struct Tile {
    int32_t expert;
    size_t count;
    const int32_t* rows;
};

// Which rows each expert has: a work list that one thread makes in a phase of its own. A single token needs none: its choices are its tiles.
class Routing {
public:
    Routing(const int32_t* experts, size_t k);

    const int32_t* experts() const { return experts_; }
    size_t k() const { return k_; }

    // The chosen ones are required of a store before they are multiplied.
    void require_of(const Stored& stored);
    bool stored() const { return store_ != nullptr; }
    // Where the store is told which experts of the next group the same tokens will probably choose: ids [tokens, k].
    void foresee(size_t group, const int32_t* ids) { next_group_ = group, next_ = ids; }

    // Makes the tiles of so many rows, those of most rows first; behind them those whose experts are still being read.
    void sort(size_t rows);
    // Whether chunks of a single token may lie apart: all that it has chosen was in memory.
    bool apart(size_t rows) const { return rows == k_ && (store_ == nullptr || here_); }

    // Number of tiles of a step with so many rows, once it is sorted. A thread that is late by a step may ask at any time.
    size_t tiles(size_t rows) const { return rows <= k_ && store_ == nullptr ? rows : count_.load(std::memory_order_acquire); }
    Tile tile(size_t number, size_t rows) const;

private:
    struct Range {
        int32_t expert;
        bool here;
        size_t first, count;             // of order_
    };

    int32_t expert_of(size_t row) const { return experts_ != nullptr ? experts_[row] : static_cast<int32_t>(row % k_); }

    const int32_t* experts_;
    size_t k_;
    std::vector<int32_t> order_, choices_;  // rows by expert; 0 … k - 1
    std::vector<size_t> starts_;
    std::vector<Range> ranges_;
    std::atomic<size_t> count_{0};
    ExpertStore* store_ = nullptr;
    size_t group_ = 0, next_group_ = 0;
    const int32_t* next_ = nullptr;
    bool here_ = true;
    std::vector<int32_t> chosen_;
    std::unique_ptr<bool[]> found_;

    void require();
};

// What a thread needs to bring rows of a tile together, and to put outputs where they belong. `source`: whose rows are there.
struct ExpertRoom {
    const void* source = nullptr;
    std::vector<int8_t> codes;
    std::vector<float> scales, x, out;
    std::vector<int32_t> sums;
};

// Outputs of blocks first … first + count for the rows of a tile.
void multiply_tile(const LinearKernels& kernels, const ExpertsOp& op, const Tile& tile, size_t first, size_t count, ExpertRoom& room, uint8_t* scratch);

}  // namespace ridgeline
