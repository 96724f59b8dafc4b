// What every ISA level exports: one table a family of kernels.
#pragma once

#include "attention/attention.h"
#include "elements/elements.h"
#include "linear/linear.h"
#include "runtime/roofline.h"
#include "sample/sample.h"

namespace ridgeline {

struct Kernels {
    const ElementKernels* elements;
    const LinearKernels* linear;
    const AttentionKernels* attention;
    const RooflineKernels* roofline;
    const SampleKernels* sample;
};

}  // namespace ridgeline
