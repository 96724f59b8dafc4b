// ISA levels of this build and of this machine.
#pragma once

#include "runtime/kernels.h"

namespace ridgeline {

struct Level {
    const char* name;
    const Kernels* kernels;
};

// Levels that were compiled, slowest first.
extern const Level kLevels[];
extern const int kLevelCount;

// Whether this processor and its operating system can run it.
bool supported(const Level& level);

}  // namespace ridgeline
