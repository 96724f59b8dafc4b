// What every ISA level exports: one table a family of kernels.
#pragma once

#include "attention.h"
#include "elements.h"
#include "linear.h"
#include "roofline.h"
#include "sample.h"

namespace ridgeline {

struct Kernels {
    const ElementKernels* elements;
    const LinearKernels* linear;
    const AttentionKernels* attention;
    const RooflineKernels* roofline;
    const SampleKernels* sample;
};

}  // namespace ridgeline
