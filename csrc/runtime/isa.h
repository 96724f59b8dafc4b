// ISA levels of this build and of this machine.
#pragma once

#include "runtime/kernels.h"

namespace ridgeline {

struct Level {
    const char* name;
    const Kernels* kernels;
    bool (*supported)();
};

// Levels that were compiled, slowest first.
extern const Level kLevels[];
extern const int kLevelCount;

}  // namespace ridgeline
