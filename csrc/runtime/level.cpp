// The tables of one ISA level, side by side.
#include "runtime/kernels.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

extern const AttentionKernels kAttention;
extern const ElementKernels kElements;
extern const LinearKernels kLinear;
extern const RooflineKernels kRoofline;
extern const SampleKernels kSample;

extern const Kernels kKernels;
const Kernels kKernels = {&kElements, &kLinear, &kAttention, &kRoofline, &kSample};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
