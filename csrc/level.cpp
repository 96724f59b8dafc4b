// The tables of one ISA level, side by side.
#include "kernels.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

extern const ElementKernels kElements;

extern const Kernels kKernels;
const Kernels kKernels = {&kElements, nullptr, nullptr};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
