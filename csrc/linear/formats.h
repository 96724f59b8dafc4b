// Sizes that follow from what a quantised format says of itself (groups32.h).
#pragma once

#include "linear/linear.h"
#include "linear/quads.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

template <class F>
constexpr size_t kRecordBytes = F::Coding::kBytes + F::kScales;
template <class F>
constexpr size_t kSpanBytes = F::kHead + F::kSpan / kCodeGroup * kRecordBytes<F>;

// Whether what a format calls minima are zeros: integers of each row, off its codes before they are scaled. All of it is exact.
template <class F>
constexpr bool kZerosOfRows = false;

// Bytes of a packed block of 16 rows.
template <class F>
size_t block_bytes(size_t k) { return k / F::kSpan * kSpanBytes<F>; }

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
