// Sizes of recurrences that plans know: elements/recurrence.cpp.
#pragma once

#include <stddef.h>

namespace ridgeline {

constexpr size_t kConvChannels = 512;    // of a part of a short convolution
constexpr size_t kMostTaps = 16, kMostKeyDim = 256;

}  // namespace ridgeline
