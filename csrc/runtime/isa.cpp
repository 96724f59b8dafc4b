// The levels of this build: RIDGELINE_LEVELS(EACH) names them, slowest first.
#include "runtime/isa.h"

#include "runtime/platform.h"

namespace ridgeline {

#define DECLARE(level) namespace level { extern const Kernels kKernels; }
RIDGELINE_LEVELS(DECLARE)
#undef DECLARE

#define ENTRY(level) {#level, &level::kKernels},
const Level kLevels[] = {RIDGELINE_LEVELS(ENTRY)};
#undef ENTRY
const int kLevelCount = sizeof kLevels / sizeof *kLevels;

bool supported(const Level& level) { return runs(level.name); }

}  // namespace ridgeline
