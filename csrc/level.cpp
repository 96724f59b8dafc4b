// The tables of one ISA level, side by side.
#include "kernels.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

extern const ElementKernels kElements;
extern const RooflineKernels kRoofline;

extern const Kernels kKernels;
const Kernels kKernels = {&kElements, nullptr, nullptr, &kRoofline};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
