// What the kernels of adapters share: bounds, and how they ask for what they read next.
#pragma once

#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kMostRank = 256;
constexpr size_t kLine = 64;
// Bytes of matrices asked for ahead. A core reads as fast as it has lines under way: of the second-level cache it has more than of the first.
constexpr bool kWide = sizeof(Part) == sizeof(Vec);
constexpr size_t kFar = 4096, kNear = 512;
constexpr size_t kTogether = kWide ? 4 : 1;             // tokens of one adapter that share what is read: as many as registers hold sums of
constexpr size_t kOutputsAhead = 512;    // outputs: other cores have written half of them

// Asks for what lies ahead of [p, p + bytes), where p is aligned to what is asked for at once.
inline void fetch_ahead(const void* p, size_t bytes) {
    const char* at = static_cast<const char*>(p);
    for (size_t i = 0; i < bytes; i += kLine) {
        if constexpr (kWide) __builtin_prefetch(at + i + kFar, 0, 2);
        __builtin_prefetch(at + i + (kWide ? kNear : kFar));
    }
}
inline void fetch_outputs(const float* y, float* out, size_t from, size_t until) {
    for (size_t i = from; i < until; i += kLine / sizeof(float)) {
        __builtin_prefetch(y + i);
        __builtin_prefetch(out + i, 1);
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
