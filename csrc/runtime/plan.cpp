#include "runtime/plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "elements/recurrence.h"

namespace ridgeline {

namespace {

constexpr size_t kAlignment = 64;

int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint8_t* aligned(std::vector<uint8_t>& memory) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (kAlignment - address % kAlignment) % kAlignment;
}

bool quantised(const Matrix& matrix) { return matrix.format > kNVFP4 && matrix.format != kF32Split; }

// Floats that will be read soon.
void fetch(const float* x, size_t count) {
    for (size_t i = 0; i < count; i += kAlignment / sizeof(float)) __builtin_prefetch(x + i);
}

bool same_cut(const Attention& a, const Attention& b) {
    return a.heads == b.heads && a.window == b.window && a.cache.kv_heads == b.cache.kv_heads && a.cache.head_dim == b.cache.head_dim &&
           a.cache.type == b.cache.type;
}

ProductOp product(const Linear& op) { return {op.weight, {}, op.x, nullptr, {op.out, op.weight.n}}; }
ProductOp product(const LinearAdd& op) { return {op.weight, {}, op.x, op.residual, {op.out, op.weight.n}}; }
ProductOp product(const LinearCodes& op) {
    return {op.weight, {op.codes, op.scales, op.sums, op.weight.k}, nullptr, nullptr, {op.out, op.weight.n}};
}
ProductOp product(const LinearCodesAdd& op) {
    return {op.weight, {op.codes, op.scales, op.sums, op.weight.k}, nullptr, op.residual, {op.out, op.weight.n}};
}

// Parts of a row of a recurrence.
size_t parts_of(const ShortConv& op) {
    if (op.taps > kMostTaps) throw std::invalid_argument("a short convolution has too many taps");
    return ceiling(op.width, kConvChannels);
}
size_t parts_of(const GatedDelta& op) {
    if (op.key_dim > kMostKeyDim) throw std::invalid_argument("keys of a recurrence are too wide");
    return op.parts;
}

// A product with floats of the tokens from `token` on.
ProductOp from_token(const ProductOp& op, size_t token) {
    const float* residual = op.residual == nullptr ? nullptr : op.residual + token * op.matrix.n;
    return {op.matrix, {}, op.x + token * op.matrix.k, residual, {op.to.out + token * op.to.stride, op.to.stride}};
}

}  // namespace

Plan::Plan(const Kernels& kernels, std::shared_ptr<Team> team) : kernels_(kernels), team_(std::move(team)) {
    const size_t bytes = std::max(kLinearScratch, kAttentionScratch) + kAlignment;
    outputs_.resize(static_cast<size_t>(team_->threads()));
    scratch_.assign(static_cast<size_t>(team_->threads()), std::vector<uint8_t>(bytes));
    rooms_.resize(static_cast<size_t>(team_->threads()));
}

Phase& Plan::phase(PhaseKind kind, bool selected, size_t factor) {
    phases_.push_back(Phase{});
    phases_.back().kind = kind;
    phases_.back().selected = selected;
    phases_.back().factor = factor;
    counters_ = std::vector<Counter>(phases_.size());
    return phases_.back();
}

void Plan::begin(OpKind kind, bool selected, size_t factor) {
    switch (kind) {
        case OpKind::rows: case OpKind::runs: phase(PhaseKind::rows, selected, factor); return;
        case OpKind::products: phase(PhaseKind::products, selected, factor); return;
        case OpKind::experts:
            phase(PhaseKind::sort, selected, factor);
            phase(PhaseKind::experts, selected, factor);
            return;
        case OpKind::recurrences: phase(PhaseKind::recurrences, selected, factor); return;
        case OpKind::attention: return;  // begins its own
    }
}

void Plan::add(OpNumber op, const void* params) {
    switch (op) {
        case op_linear: return add_product(product(*static_cast<const Linear*>(params)));
        case op_linear_add: return add_product(product(*static_cast<const LinearAdd*>(params)));
        case op_linear_codes: return add_product(product(*static_cast<const LinearCodes*>(params)));
        case op_linear_codes_add: return add_product(product(*static_cast<const LinearCodesAdd*>(params)));
        case op_linear_experts: return add_experts(experts(*static_cast<const LinearExperts*>(params)));
        case op_linear_experts_codes: return add_experts(experts(*static_cast<const LinearExpertsCodes*>(params)));
        case op_linear_heads: return add_experts(experts(*static_cast<const LinearHeads*>(params)));
        case op_linear_heads_codes: return add_experts(experts(*static_cast<const LinearHeadsCodes*>(params)));
        case op_attention: return add_attention(*static_cast<const Attention*>(params));
        case op_short_conv: return add_recurrence(op, params, parts_of(*static_cast<const ShortConv*>(params)));
        case op_gated_delta: return add_recurrence(op, params, parts_of(*static_cast<const GatedDelta*>(params)));
        case op_route_logits:
            if (static_cast<const RouteLogits*>(params)->columns > kMostExperts) throw std::invalid_argument("too many experts to choose from");
            routed_ = false;
            break;
        case op_lora: phases_.back().slots = static_cast<const Lora*>(params)->slots; break;
        case op_select: routed_ = false; break;  // may be of a choice of experts
        default: break;
    }
    RowOp made = {kernels_.rows[op], {}};
    memcpy(&made.params, params, ops()[op].params.size);
    phases_.back().rows.push_back(made);
}

void Plan::add_product(const ProductOp& op) {
    phases_.back().products.push_back(op);
    phases_.back().floats &= !quantised(op.matrix);
    phases_.back().blocks += ceiling(op.matrix.n, kBlockRows);
    phases_.back().bytes += kernels_.linear->packed_bytes(op.matrix.format, op.matrix.n, op.matrix.k, op.matrix.group);
}

// Products behind one choice of experts share how its rows are sorted: the phase in front of the first of them sorts.
void Plan::add_experts(const ExpertsOp& op) {
    Phase& products = phases_.back();
    if (products.routing == nullptr) {
        if (!routed_ || routings_.back()->experts() != op.experts || routings_.back()->k() != op.k) {
            routings_.push_back(std::make_unique<Routing>(op.experts, op.k));
            phases_[phases_.size() - 2].routing = routings_.back().get();
        }
        products.routing = routings_.back().get();
        routed_ = true;
    }
    products.experts.push_back(op);
    products.blocks += ceiling(op.weight.n, kBlockRows);
}

void Plan::store_last(const Stored& stored) {
    Phase& products = phases_.back();
    products.experts.back().stored = stored;
    products.routing->require_of(stored);
    stores_.insert(stored.store);
}

void Plan::add_screen() {
    const Phase product = phases_.back();
    for (const PhaseKind kind : {PhaseKind::measure, PhaseKind::bound, PhaseKind::threshold, PhaseKind::compute}) phase(kind, product.selected);
    const ProductOp& op = product.products.front();
    screen_ = std::make_unique<Screen>(kernels_, op.matrix, op.codes, scratch_.size());
}

void Plan::add_attention(const Attention& op) {
    const auto found = std::find_if(cuts_.begin(), cuts_.end(), [&](const Cut& cut) { return same_cut(cut.shape, op); });
    const size_t cut = static_cast<size_t>(found - cuts_.begin());
    if (found == cuts_.end()) {
        cuts_.emplace_back();
        cuts_.back().shape = op;
    }
    for (const PhaseKind kind : {PhaseKind::attention, PhaseKind::merge}) {
        Phase& made = phase(kind, false);
        made.attention = op;
        made.cut = cut;
    }
}

void Plan::add_recurrence(OpNumber op, const void* params, size_t parts) {
    RecurrenceOp& made = phases_.back().recurrence;
    made.run = kernels_.recurrences[op];
    made.parts = parts;
    memcpy(&made.params, params, ops()[op].params.size);
    recurs_ = true;
}

void Plan::run(const Step& step, size_t first, size_t last, Trace* trace, const Wanted& wanted) {
    // The counters first: a thread that is late by a step may count the chunks of what follows, and must find none of its own to claim.
    const uint64_t tag = team_->next_step() << 32;
    const auto reset = [tag](Counter& counter) {
        counter.next.store(tag, std::memory_order_relaxed);
        counter.done.store(tag, std::memory_order_relaxed);
    };
    std::for_each(counters_.begin(), counters_.end(), reset);
    std::for_each(sides_, sides_ + kSides, reset);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    step_ = step;
    first_ = first;
    last_ = std::min(last, phases_.size());
    trace_ = trace;
    began_ = trace == nullptr ? 0 : nanoseconds();
    cut_attention();
    order_rows();
    wanted_ = wanted;
    const bool best = wanted.best != nullptr, follows = wanted.followers != nullptr;
    const size_t slices = best ? ceiling(head().blocks, blocks_each(head(), step_)) : 0;
    asks_ = follows && best && screen_ && screen_->ready();
    screened_ = !follows && screens(wanted.masks);  // others see their masks first
    if (best) {
        best_values_.resize(step.selected * slices);
        best_ids_.resize(step.selected * slices);
        for (std::vector<float>& each : outputs_) each.resize(step.selected * blocks_each(head(), step_) * kBlockRows);
    }
    team_->enter(walk, this);
    for (ExpertStore* store : stores_) store->check();
    if (screened_) {
        screen_->end();
        return best ? screen_->best(wanted.best) : void();
    }
    for (size_t row = 0; row < step.selected && best; ++row)
        wanted.best[row] = kernels_.sample->argmax_merge(&best_values_[row * slices], &best_ids_[row * slices], slices);
}

bool Plan::screens(const Mask* masks) {
    if (!screen_ || (wanted_.best == nullptr && (wanted_.keep == nullptr || wanted_.maxima == nullptr))) return false;
    return screen_->begin(step_.selected, blocks_each(head(), step_), wanted_.best == nullptr ? wanted_.keep : nullptr, masks);
}

uint64_t Plan::beat() const {
    uint64_t sum = 0;
    const auto add = [&](const Counter& counter) { sum += counter.next.load(std::memory_order_relaxed) + counter.done.load(std::memory_order_relaxed); };
    std::for_each(counters_.begin(), counters_.end(), add);
    std::for_each(sides_, sides_ + kSides, add);
    return sum;
}

uint8_t* Plan::scratch_of(int thread) { return aligned(scratch_[static_cast<size_t>(thread)]); }

void Plan::cut_attention() {
    size_t partial_floats = 0;
    for (Cut& cut : cuts_) {
        const size_t tiles = step_.tokens * cut.shape.cache.kv_heads;
        size_t splits = 0;
        for (size_t row = 0; row < step_.rows; ++row) splits += ceiling(static_cast<size_t>(step_.kv_len[row]), kSplit);
        cut.items.resize(tiles * 2 + splits * cut.shape.cache.kv_heads * 2);
        cut.count = kernels_.attention->items(cut.shape, step_, scratch_.size(), cut.items.data(), cut.items.size(), &cut.partial_floats);
        partial_floats = std::max(partial_floats, cut.partial_floats);
    }
    if (partials_.size() < partial_floats) partials_.resize(partial_floats);
}

void Plan::order_rows() {
    if (!recurs_) return;
    const auto tokens = [&](size_t row) { return step_.cu_q[row + 1] - step_.cu_q[row]; };
    ordered_.resize(step_.rows);
    std::iota(ordered_.begin(), ordered_.end(), size_t{0});
    std::stable_sort(ordered_.begin(), ordered_.end(), [&](size_t a, size_t b) { return tokens(a) > tokens(b); });
}

void Plan::walk(void* work, uint64_t step, int thread) {
    Plan& plan = *static_cast<Plan*>(work);
    const bool follows = plan.wanted_.followers != nullptr;
    if (follows && thread + 1 == plan.team_->active() && !plan.move_ahead(step)) return;
    for (size_t p = plan.first_; p < plan.last_; ++p) {
        if (follows && p == plan.last_product() && !plan.meet_masks(step)) return;
        const Phase& phase = plan.phases_[p];
        const size_t chunks = plan.chunks(phase, plan.step_);
        std::atomic_thread_fence(std::memory_order_acquire);  // before the claim: the counters are at least as new as the step
        if (plan.trace_ == nullptr) {
            if (!plan.team_->share(plan.counters_[p], step, chunks, [&](size_t chunk) { plan.compute(phase, plan.step_, chunk, thread); })) return;
            continue;
        }
        Trace& trace = plan.trace_[static_cast<size_t>(thread) * plan.phases_.size() + p];
        const bool over = !plan.team_->share(plan.counters_[p], step, chunks, [&](size_t chunk) {
            if (trace.chunks == 0) trace.began = nanoseconds() - plan.began_;
            plan.compute(phase, plan.step_, chunk, thread);
            trace.ended = nanoseconds() - plan.began_;
            ++trace.chunks;
        });
        if (over) return;
    }
    if (follows && plan.asks_ && plan.screened_) plan.ask_grammars(step, thread);
}

void Plan::compute(const Phase& phase, const Step& step, size_t chunk, int thread) {
    uint8_t* scratch = scratch_of(thread);
    const Cut* cut = phase.kind == PhaseKind::attention || phase.kind == PhaseKind::merge ? &cuts_[phase.cut] : nullptr;
    switch (phase.kind) {
        case PhaseKind::rows: return compute_rows(phase, step, chunk);
        case PhaseKind::products: {
            const size_t place = in_streams(chunk, chunks(phase, step), scratch_.size());
            if (wanted_.best != nullptr && &phase == &head()) return find_best(phase, step, place, thread);
            multiply(phase, step, place, thread);
            if (wanted_.maxima != nullptr && &phase == &head()) find_maxima(phase, step, place);
            return;
        }
        case PhaseKind::sort: return phase.routing->sort(rows_of(phase, step));
        case PhaseKind::experts: return multiply_experts(phase, step, chunk, thread);
        case PhaseKind::attention:
            return kernels_.attention->attend(phase.attention, step, cut->items[chunk], partials_.data(), scratch);
        case PhaseKind::merge:
            return kernels_.attention->merge(phase.attention, step, cut->items.data(), cut->count, partials_.data());
        case PhaseKind::recurrences: {
            const RecurrenceOp& op = phase.recurrence;
            return op.run(&op.params, step, ordered_[chunk / op.parts], chunk % op.parts);
        }
        case PhaseKind::measure: case PhaseKind::threshold: {
            const size_t rows = rows_of(phase, step), count = chunks(phase, step);
            for (size_t row = rows * chunk / count; row < rows * (chunk + 1) / count; ++row)
                phase.kind == PhaseKind::measure ? screen_->measure(row) : screen_->threshold(row, scratch);
            return;
        }
        case PhaseKind::bound: return screen_->bound(in_streams(chunk, chunks(phase, step), scratch_.size()), scratch);
        case PhaseKind::compute: {
            const size_t place = in_streams(chunk, chunks(phase, step), scratch_.size());
            const size_t own = static_cast<size_t>(thread);
            if (wanted_.best != nullptr) return screen_->find(place, own, scratch);
            return screen_->write(place, head().products.front().to, wanted_.maxima, own, scratch);
        }
    }
}

// Chunks are (tile, blocks of all products): the tiles of most rows come first. The choices of a single token are streams of memory.
void Plan::multiply_experts(const Phase& phase, const Step& step, size_t chunk, int thread) {
    const size_t rows = rows_of(phase, step), tiles = phase.routing->tiles(rows), size = expert_blocks_each(phase, tiles);
    const size_t per = ceiling(phase.blocks, size), place = phase.routing->apart(rows) ? in_streams(chunk, tiles * per, scratch_.size()) : chunk;
    const Tile tile = phase.routing->tile(place / per, rows);
    size_t first = place % per * size, left = std::min(size, phase.blocks - first), passed = 0;
    ExpertRoom& room = rooms_[static_cast<size_t>(thread)];
    room.source = nullptr;
    for (const ExpertsOp& op : phase.experts) {
        const size_t blocks = ceiling(op.weight.n, kBlockRows);
        if (left > 0 && first < passed + blocks) {
            const size_t here = std::min(left, passed + blocks - first);
            multiply_tile(*kernels_.linear, op, tile, first - passed, here, room, scratch_of(thread));
            first += here;
            left -= here;
        }
        passed += blocks;
    }
}

void Plan::find_best(const Phase& phase, const Step& step, size_t chunk, int thread) {
    const ProductOp& op = phase.products.front();
    const size_t m = step.selected, slices = chunks(phase, step), size = blocks_each(phase, step);
    const size_t first = chunk * size, count = std::min(size, phase.blocks - first), column = first * kBlockRows;
    const size_t columns = std::min(op.matrix.n - column, count * kBlockRows), stride = size * kBlockRows;
    float* outputs = outputs_[static_cast<size_t>(thread)].data();
    uint8_t* scratch = scratch_of(thread);
    const Product to{outputs - column, stride};  // kernels count columns from the matrix's first
    multiply_blocks(op, m, to, first, count, scratch);
    for (size_t row = 0; row < m; ++row) {
        if (wanted_.masks != nullptr) kernels_.sample->forbid(wanted_.masks[row], column, columns, outputs + row * stride);
        kernels_.sample->argmax_slice(outputs + row * stride, column, columns, &best_values_[row * slices + chunk], &best_ids_[row * slices + chunk]);
    }
}

// While the outputs of a chunk are in cache.
void Plan::find_maxima(const Phase& phase, const Step& step, size_t chunk) {
    const ProductOp& op = phase.products.front();
    const size_t size = blocks_each(phase, step), column = chunk * size * kBlockRows, columns = std::min(op.matrix.n - column, size * kBlockRows);
    for (size_t row = 0; row < step.selected; ++row) {
        float* outputs = op.to.out + row * op.to.stride + column;
        if (wanted_.masks != nullptr) kernels_.sample->forbid(wanted_.masks[row], column, columns, outputs);
        kernels_.sample->maxima(outputs, columns, wanted_.maxima + row * ceiling(op.matrix.n, kSampleBlock) + column / kSampleBlock);
    }
}

void Plan::multiply(const Phase& phase, const Step& step, size_t chunk, int thread) {
    const size_t size = blocks_each(phase, step), per = ceiling(phase.blocks, size), parts = this->parts(phase, step);
    const size_t token = rows_of(phase, step) * (chunk / per) / parts, end = rows_of(phase, step) * (chunk / per + 1) / parts;
    size_t first = chunk % per * size, left = std::min(size, phase.blocks - std::min(phase.blocks, first)), passed = 0;
    for (const ProductOp& op : phase.products) {
        const size_t blocks = ceiling(op.matrix.n, kBlockRows);
        if (left > 0 && first < passed + blocks) {
            const size_t here = std::min(left, passed + blocks - first);
            const ProductOp part = parts == 1 ? op : from_token(op, token);
            multiply_blocks(part, end - token, part.to, first - passed, here, scratch_of(thread));
            first += here;
            left -= here;
        }
        passed += blocks;
    }
}

// The residual is added to what has just been written, while it is near.
void Plan::multiply_blocks(const ProductOp& op, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) const {
    const size_t n = op.matrix.n, column = first * kBlockRows, columns = std::min(n - column, count * kBlockRows);
    if (quantised(op.matrix))
        kernels_.linear->multiply(op.matrix, op.codes, m, to, first, count, scratch);
    else
        kernels_.linear->multiply_floats(op.matrix, op.x, op.matrix.k, m, to, first, count, scratch);
    for (size_t row = 0; row < m && op.residual != nullptr; ++row) {
        float* out = to.out + row * to.stride + column;
        const float* residual = op.residual + row * n + column;
        if (row + 1 < m) {  // lies in other pages: no processor fetches it by itself
            fetch(out + to.stride, columns);
            fetch(residual + n, columns);
        }
        kernels_.linear->add_residual(residual, columns, out);
    }
}

}  // namespace ridgeline
