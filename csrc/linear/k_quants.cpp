// Kernels of the superblocks of 256 inputs.
#include "linear/k_quants.h"

#include "linear/low_k_quants.h"
#include "linear/span_family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

using KQuants = Family<Member<kQ2_K, Q2_K>, Member<kQ3_K, Q3_K>, Member<kQ4_K, Q4_K>, Member<kQ5_K, Q5_K>, Member<kQ6_K, Q6_K>>;

}  // namespace

const FamilyKernels kKQuants = {KQuants::packed_bytes, KQuants::pack, KQuants::unpack, multiply_family<KQuants>, KQuants::row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
