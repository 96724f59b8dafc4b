// Every quantised format by its number.
#pragma once

#include "linear.h"
#include "linear_groups32.h"
#include "linear_k_quants.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

template <class F>
constexpr size_t kRecordBytes = F::Coding::kBytes + F::kScales;
template <class F>
constexpr size_t kSpanBytes = F::kHead + F::kSpan / kCodeGroup * kRecordBytes<F>;

// Bytes of a packed block of 16 rows.
template <class F>
size_t block_bytes(size_t k) { return k / F::kSpan * kSpanBytes<F>; }

// Calls `work` with the format of this number; false where there is none.
template <class Work>
bool with_format(int format, const Work& work) {
    switch (format) {
        case kQ4_0: work(Q4_0()); return true;
        case kQ5_0: work(Q5_0()); return true;
        case kQ8_0: work(Q8_0()); return true;
        case kQ4_K: work(Q4_K()); return true;
        case kQ6_K: work(Q6_K()); return true;
        default: return false;
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
