#include "runtime/rows.h"

#include <string.h>

namespace ridgeline {

namespace {
const float* at(const float* base, size_t row, size_t width) { return base == nullptr ? nullptr : base + row * width; }
}  // namespace

void embed(const RowOp& op, const Kernels& kernels, const Step& step, size_t row) {
    const int32_t id = op.choice ? step.positions[row] : step.ids[row];
    kernels.linear->row(op.table, static_cast<size_t>(id), op.out + row * op.width);
}

void select(const RowOp& op, const Kernels&, const Step& step, size_t row) {
    memcpy(op.out + row * op.width, at(op.x, static_cast<size_t>(step.select[row]), op.width), op.width * sizeof(float));
}

void reorder(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->reorder(at(op.x, row, op.width), op.order, op.width, op.out + row * op.width);
}

void quantise(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    const size_t k = op.width;
    kernels.elements->quantise(at(op.x, row, k), k, op.piece, op.codes + row * k, op.scales + row * (k / kCodeGroup), op.sums + row * (k / 16));
}

void rms_norm(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->rms_norm(at(op.x, row, op.width), op.weight, op.width, op.piece, op.number, op.out + row * op.width);
}

void layer_norm(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->layer_norm(at(op.x, row, op.width), op.weight, op.bias, op.width, op.number, op.out + row * op.width);
}

void add(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->add(at(op.x, row, op.width), at(op.y, row, op.width), op.width, op.out + row * op.width);
}

void add_bias(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->add(at(op.x, row, op.width), op.bias, op.width, op.out + row * op.width);
}

void scale(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->scale(at(op.x, row, op.width), op.number, op.width, op.out + row * op.width);
}

void softcap(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->softcap(at(op.x, row, op.width), op.number, op.width, op.out + row * op.width);
}

void activate(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->activate(op.choice, at(op.x, row, op.width), at(op.y, row, op.width), op.width, op.out + row * op.width);
}

void rotation(const RowOp& op, const Kernels& kernels, const Step& step, size_t row) {
    kernels.elements->rotation(step.positions[row], op.frequencies, op.half, op.number, op.out + row * 2 * op.half);
}

void rope(const RowOp& op, const Kernels& kernels, const Step&, size_t row) {
    kernels.elements->rope(at(op.x, row, op.width), at(op.y, row, 2 * op.half), op.width, op.piece, op.half, op.out + row * op.width);
}

void kv_write(const RowOp& op, const Kernels& kernels, const Step& step, size_t row) {
    kernels.attention->kv_write(op.cache, op.x, op.y, step.slots[op.choice], row, 1);
}

}  // namespace ridgeline
