// A recorded op list as one native call: phases one after the other, each cut into chunks that a team of threads shares.
//
// Addresses of values, weights and cache are given once, when the plan is made; what changes from step to step is in `Step`. Python owns
// all memory that addresses name, and keeps it as long as the plan.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "runtime/experts.h"
#include "runtime/follow.h"
#include "runtime/kernels.h"
#include "runtime/step.h"
#include "runtime/team.h"
#include "screen/screen.h"

namespace ridgeline {

enum class PhaseKind { rows, products, sort, experts, attention, merge, recurrences, measure, bound, threshold, compute };

// One matrix times the activations of a phase.
struct ProductOp {
    Matrix matrix;
    Codes codes;                         // quantised formats
    const float* x;                      // float formats: [m, k]
    const float* residual;               // [m, n], added in front of the product; or null
    Product to;
};

// One op of rows with its parameters.
struct RowOp {
    RowKernel run;
    RowParams params;
};

// A recurrence: items are (row of the step, part).
struct RecurrenceOp {
    RecurrenceKernel run;
    RowParams params;
    size_t parts;
};

constexpr size_t kRunRows = 4;           // rows of one adapter that pass through a phase together: more leave a near cache

struct Phase {
    PhaseKind kind;
    bool selected = false;               // runs over the selected positions, not over all tokens
    size_t factor = 1;                   // rows per token or position: the axis of compute/graph.py
    std::vector<RowOp> rows;
    std::vector<ProductOp> products;
    std::vector<ExpertsOp> experts;      // all of one routing
    Routing* routing = nullptr;
    size_t blocks = 0, bytes = 0;        // of all products: packed
    bool floats = true;                  // all products have float weights
    Attention attention{};
    size_t cut = 0;                      // which of the plan's cuts into items
    const int32_t* slots = nullptr;      // of adapters, by row, where an op changes products
    RecurrenceOp recurrence{};
};

constexpr size_t kSampleBlocks = kSampleBlock / kBlockRows;  // a chunk of the last product has blocks of the sampler whole

inline size_t ceiling(size_t n, size_t d) { return (n + d - 1) / d; }
// Chunks claimed one after the other lie one stream per thread apart, so that threads in step each read ascending memory: the place of `claim`.
size_t in_streams(size_t claim, size_t chunks, size_t streams);

// What is wanted of the last product, a matrix by itself, for the selected rows. All of it null: outputs.
struct Wanted {
    int32_t* best = nullptr;             // [selected]: the number of each row's largest output, in place of outputs
    const int32_t* keep = nullptr;       // [selected]: so many of the largest outputs are needed, and those that equal the last; 0: all
    const Mask* masks = nullptr;         // [selected]: `best`, `keep` and `maxima` are of the outputs that these allow; null: of all. Beside
                                         // `maxima` others are -infinity
    float* maxima = nullptr;             // [selected, ceil(n / kSampleBlock)]: beside outputs the largest of each block of them, NaN where one
                                         // is; -infinity where `keep` needs none, and no output is written
    const GrammarCalls* calls = nullptr;
    Follower* followers = nullptr;       // [selected]: the step moves their places and writes `masks`, but for rows whose `best` needs none
};

// What one thread did in one phase: nanoseconds since the step began, and chunks.
struct Trace {
    int64_t began, ended, chunks;
};

class Plan {
public:
    Plan(const Kernels& kernels, std::shared_ptr<Team> team);
    ~Plan() { team_->forget(); }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // What follows is added to the phase that was begun last.
    void begin(OpKind kind, bool selected, size_t factor);
    void add(OpNumber op, const void* params);
    // Where the experts of the op that was added last lie, if not all are in memory.
    void store_last(const Stored& stored);
    // Ids [tokens, k] of experts of another group that tokens which have chosen of the one added last will probably choose later in the step.
    void foresee_last(size_t group, const int32_t* ids) { phases_.back().routing->foresee(group, ids); }
    // Behind the last phase, which is a single product with a screened matrix: phases that stand in for it where only the largest of each row
    // are wanted.
    void add_screen();

    size_t phases() const { return phases_.size(); }
    // The phase of the last product, or the last of all where that is none: what comes before does not depend on `Wanted`.
    size_t last_product() const { return phases_.size() - 1 - (screen_ ? kScreenPhases : 0); }
    // Changes whenever a chunk is claimed or finished; any thread may ask while a step runs.
    uint64_t beat() const;
    Screen::Counts screened() const { return screen_ ? screen_->counts() : Screen::Counts{}; }

    // std::runtime_error where experts could not be read from their file: what the step made is void.
    // Runs phases first … last - 1. `trace` [threads, phases] or null. Not to be called by two threads at a time.
    void run(const Step& step, size_t first, size_t last, Trace* trace, const Wanted& wanted);

private:
    static constexpr size_t kScreenPhases = 4;

    struct Cut {                         // attentions of one shape share how a step is cut into items
        Attention shape;
        std::vector<AttentionItem> items;
        size_t count = 0, partial_floats = 0;
    };

    Phase& phase(PhaseKind kind, bool selected, size_t factor = 1);
    void add_product(const ProductOp& op);
    void add_experts(const ExpertsOp& op);
    size_t expert_blocks_each(const Phase& phase, size_t tiles) const;
    void multiply_experts(const Phase& phase, const Step& step, size_t chunk, int thread);
    // The attention and, behind it, the merging of its partial results.
    void add_attention(const Attention& op);
    void add_recurrence(OpNumber op, const void* params, size_t parts);
    const Phase& head() const { return phases_[last_product()]; }
    static void walk(void* plan, uint64_t step, int thread);
    void cut_attention();
    // Rows of most tokens first: the last item is what threads wait for.
    void order_rows();
    size_t chunks(const Phase& phase, const Step& step) const;
    void compute(const Phase& phase, const Step& step, size_t chunk, int thread);
    void compute_rows(const Phase& phase, const Step& step, size_t chunk) const;
    void multiply(const Phase& phase, const Step& step, size_t chunk, int thread);
    void multiply_blocks(const ProductOp& op, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) const;
    void find_best(const Phase& phase, const Step& step, size_t chunk, int thread);
    void find_maxima(const Phase& phase, const Step& step, size_t chunk);
    size_t parts(const Phase& phase, const Step& step) const;
    size_t blocks_each(const Phase& phase, const Step& step) const;
    // Work of rows that follow grammars, beside the phases: where places move and masks are written, while phases in front of the last product
    // run; what that product does then; whether grammars take the largest outputs; and the largest of those that they take.
    enum Side { kMove, kDecide, kAsk, kAgain, kSides };
    template <typename F>
    bool share_side(Side side, uint64_t step, size_t chunks, F run);
    // Whether a row's grammar is asked about its choice, and writes a mask only where it does not take that.
    bool is_asked(size_t row) const { return wanted_.followers[row].asks != 0 && (asks_ || wanted_.best == nullptr); }
    void move_row(size_t row);
    // By one thread, while others begin; then by all. False: the step is over.
    bool move_ahead(uint64_t step);
    bool meet_masks(uint64_t step);
    bool ask_grammars(uint64_t step, int thread);
    // Whether the last product is screened.
    bool screens(const Mask* masks);
    uint8_t* scratch_of(int thread);
    size_t rows_of(const Phase& phase, const Step& step) const { return (phase.selected ? step.selected : step.tokens) * phase.factor; }

    const Kernels& kernels_;
    std::shared_ptr<Team> team_;
    std::vector<Phase> phases_;
    std::vector<Counter> counters_;
    Counter sides_[kSides];
    std::vector<Cut> cuts_;
    std::vector<std::unique_ptr<Routing>> routings_;
    bool routed_ = false;                // nothing has been chosen since the last routing was made
    std::set<ExpertStore*> stores_;      // that experts come from
    std::vector<ExpertRoom> rooms_;      // one per thread
    std::vector<size_t> ordered_;        // rows of the step as recurrences take them; empty of a plan without
    bool recurs_ = false;
    std::vector<float> partials_;
    std::vector<std::vector<float>> outputs_;  // a thread each: outputs of a chunk that only their largest is wanted of
    std::vector<float> best_values_;           // [selected, chunks of the last phase]
    std::vector<int32_t> best_ids_;
    std::unique_ptr<Screen> screen_;
    Wanted wanted_{};
    bool screened_ = false;
    bool asks_ = false;                  // grammars may be asked about the largest outputs: the step is screened
    std::vector<Mask> ahead_;            // [selected]: of the rows that are not asked
    std::vector<std::vector<uint8_t>> scratch_;
    Step step_{};
    size_t first_ = 0, last_ = 0;
    Trace* trace_ = nullptr;
    int64_t began_ = 0;
};

}  // namespace ridgeline
