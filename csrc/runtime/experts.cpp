#include "runtime/experts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ridgeline {

namespace {

constexpr size_t kTileRows = 64;         // at most: a matrix is read once per tile

// Rows `tile` of source [.., width] one behind the other.
template <typename T>
const T* gathered(const T* source, size_t width, const ExpertsOp& op, const Tile& tile, std::vector<T>& room) {
    if (room.size() < tile.count * width) room.resize(tile.count * width);
    for (size_t i = 0; i < tile.count; ++i) {
        const size_t row = static_cast<size_t>(tile.rows[i]);
        memcpy(&room[i * width], source + (op.input_per_expert ? row : row / op.k) * width, width * sizeof(T));
    }
    return room.data();
}

}  // namespace

ExpertsOp experts(const LinearExperts& op) {
    return {op.weight, op.expert_bytes, {}, op.x, op.bias, op.out, op.experts, op.k, op.input_per_expert != 0, {}};
}
ExpertsOp experts(const LinearExpertsCodes& op) {
    const Codes codes = {op.codes, op.scales, op.sums, op.weight.k};
    return {op.weight, op.expert_bytes, codes, nullptr, op.bias, op.out, op.experts, op.k, op.input_per_expert != 0, {}};
}
ExpertsOp experts(const LinearHeads& op) { return {op.weight, op.expert_bytes, {}, op.x, nullptr, op.out, nullptr, op.parts, true, {}}; }
ExpertsOp experts(const LinearHeadsCodes& op) {
    const Codes codes = {op.codes, op.scales, op.sums, op.weight.k};
    return {op.weight, op.expert_bytes, codes, nullptr, nullptr, op.out, nullptr, op.parts, true, {}};
}

Routing::Routing(const int32_t* experts, size_t k) : experts_(experts), k_(k), choices_(k) {
    for (size_t i = 0; i < k; ++i) choices_[i] = static_cast<int32_t>(i);
}

void Routing::sort(size_t rows) {
    const size_t count = experts_ != nullptr ? 1 + static_cast<size_t>(*std::max_element(experts_, experts_ + rows)) : k_;
    starts_.assign(count + 1, 0);
    for (size_t row = 0; row < rows; ++row) ++starts_[static_cast<size_t>(expert_of(row)) + 1];
    for (size_t expert = 0; expert < count; ++expert) starts_[expert + 1] += starts_[expert];
    ranges_.clear();
    for (size_t expert = 0; expert < count; ++expert) {
        const size_t first = starts_[expert], own = starts_[expert + 1] - first, parts = (own + kTileRows - 1) / kTileRows;
        for (size_t part = 0; part < parts; ++part) {
            const size_t from = own * part / parts;
            ranges_.push_back({static_cast<int32_t>(expert), true, first + from, own * (part + 1) / parts - from});
        }
    }
    std::stable_sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.count > b.count; });
    if (store_ != nullptr) require();
    if (next_ != nullptr) store_->foresee(next_group_, next_, rows);
    order_.resize(rows);
    for (size_t row = 0; row < rows; ++row) order_[starts_[static_cast<size_t>(expert_of(row))]++] = static_cast<int32_t>(row);
    count_.store(ranges_.size(), std::memory_order_release);
}

void Routing::require_of(const Stored& stored) {
    if (store_ != nullptr && (store_ != stored.store || group_ != stored.group)) throw std::invalid_argument("experts of one choice lie in two groups");
    store_ = stored.store;
    group_ = stored.group;
}

// Tiles whose experts are still being read come last: the others are computed meanwhile.
void Routing::require() {
    chosen_.clear();
    for (const Range& range : ranges_)
        if (std::find(chosen_.begin(), chosen_.end(), range.expert) == chosen_.end()) chosen_.push_back(range.expert);
    found_ = std::make_unique<bool[]>(chosen_.size());
    store_->require(group_, chosen_.data(), chosen_.size(), found_.get());
    for (Range& range : ranges_)
        range.here = found_[static_cast<size_t>(std::find(chosen_.begin(), chosen_.end(), range.expert) - chosen_.begin())];
    std::stable_partition(ranges_.begin(), ranges_.end(), [](const Range& range) { return range.here; });
    here_ = ranges_.back().here;
}

Tile Routing::tile(size_t number, size_t rows) const {
    if (rows <= k_ && store_ == nullptr) return {expert_of(number), 1, &choices_[number]};
    const Range& range = ranges_[number];
    return {range.expert, range.count, &order_[range.first]};
}

void multiply_tile(const LinearKernels& kernels, const ExpertsOp& op, const Tile& tile, size_t first, size_t count, ExpertRoom& room, uint8_t* scratch) {
    const size_t n = op.weight.n, k = op.weight.k, column = first * kBlockRows, columns = std::min(n - column, count * kBlockRows);
    Matrix matrix = op.weight;
    if (op.stored.store == nullptr) {
        matrix.data += static_cast<size_t>(tile.expert) * op.expert_bytes;
    } else {
        const uint8_t* slot = op.stored.store->address(op.stored.group, tile.expert);
        if (slot == nullptr) return;     // the step fails when all of it is over
        matrix.data = slot + op.stored.place;
    }
    const bool alone = tile.count == 1, floats = op.x != nullptr;
    const size_t row = static_cast<size_t>(tile.rows[0]), source = op.input_per_expert ? row : row / op.k;
    Codes codes = {op.codes.codes + source * k, op.codes.scales + source * (k / kCodeGroup), op.codes.sums + source * (k / 16), k};
    const float* x = op.x + source * k;
    if (!alone) {
        const void* from = floats ? static_cast<const void*>(op.x) : op.codes.codes;
        if (room.source != from && floats) gathered(op.x, k, op, tile, room.x);
        if (room.source != from && !floats) {
            gathered(op.codes.codes, k, op, tile, room.codes);
            gathered(op.codes.scales, k / kCodeGroup, op, tile, room.scales);
            gathered(op.codes.sums, k / 16, op, tile, room.sums);
        }
        room.source = from;
        codes = {room.codes.data(), room.scales.data(), room.sums.data(), k};
        x = room.x.data();
        if (room.out.size() < tile.count * count * kBlockRows) room.out.resize(tile.count * count * kBlockRows);
    }
    // Kernels count columns from the matrix's first.
    const Product to = alone ? Product{op.out + row * n, n} : Product{room.out.data() - column, count * kBlockRows};
    if (floats)
        kernels.multiply_floats(matrix, x, k, tile.count, to, first, count, scratch);
    else
        kernels.multiply(matrix, codes, tile.count, to, first, count, scratch);
    for (size_t i = 0; i < tile.count; ++i) {
        float* out = op.out + static_cast<size_t>(tile.rows[i]) * n + column;
        if (!alone) memcpy(out, &room.out[i * to.stride], columns * sizeof(float));
        if (op.bias != nullptr) kernels.add_residual(op.bias + static_cast<size_t>(tile.expert) * n + column, columns, out);
    }
}

}  // namespace ridgeline
