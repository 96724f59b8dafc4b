// Ops that compute one token at a time: what the plan strings together without a barrier between them.
#pragma once

#include "runtime/kernels.h"
#include "runtime/step.h"

namespace ridgeline {

// One op with its operands: base addresses of [tokens or selected, width] arrays, and what does not change from step to step.
struct RowOp {
    void (*run)(const RowOp& op, const Kernels& kernels, const Step& step, size_t row);
    const float* x = nullptr;
    const float* y = nullptr;
    float* out = nullptr;
    size_t width = 0;                    // of x and out
    size_t piece = 0;                    // of a norm; head_dim of a rotation; group of quantise
    float number = 0.0f;                 // eps, factor or cap
    int choice = 0;                      // activation, KV group, or whether ids are positions
    const float* weight = nullptr;
    const float* bias = nullptr;
    const int32_t* order = nullptr;      // of reorder: [width]
    const double* frequencies = nullptr; // of a rotation: [half]
    size_t half = 0;
    int8_t* codes = nullptr;             // of quantise
    float* scales = nullptr;
    int32_t* sums = nullptr;
    Matrix table{};                      // of embed
    KVLayer cache{};                     // of kv_write
};

void embed(const RowOp&, const Kernels&, const Step&, size_t);
void select(const RowOp&, const Kernels&, const Step&, size_t);
void reorder(const RowOp&, const Kernels&, const Step&, size_t);
void quantise(const RowOp&, const Kernels&, const Step&, size_t);
void rms_norm(const RowOp&, const Kernels&, const Step&, size_t);
void layer_norm(const RowOp&, const Kernels&, const Step&, size_t);
void add(const RowOp&, const Kernels&, const Step&, size_t);
void add_bias(const RowOp&, const Kernels&, const Step&, size_t);
void scale(const RowOp&, const Kernels&, const Step&, size_t);
void softcap(const RowOp&, const Kernels&, const Step&, size_t);
void activate(const RowOp&, const Kernels&, const Step&, size_t);
void rotation(const RowOp&, const Kernels&, const Step&, size_t);
void rope(const RowOp&, const Kernels&, const Step&, size_t);
void kv_write(const RowOp&, const Kernels&, const Step&, size_t);

}  // namespace ridgeline
