// What every ISA level exports: one table per family of kernels.
#pragma once

#include "attention/attention.h"
#include "linear/linear.h"
#include "runtime/roofline.h"
#include "sample/sample.h"

namespace ridgeline {

struct Kernels {
    const RowKernel* rows;               // [kOps]; null for ops of other kinds
    const RecurrenceKernel* recurrences; // [kOps]; likewise
    const LinearKernels* linear;
    const AttentionKernels* attention;
    const RooflineKernels* roofline;
    const SampleKernels* sample;
};

}  // namespace ridgeline
