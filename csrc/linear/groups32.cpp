// Kernels of the formats of which every 32 inputs have a scale of their own.
#include "linear/groups32.h"

#include "linear/family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

const FamilyKernels kGroups32 =
    Family<Member<kQ4_0, Q4_0>, Member<kQ4_1, Q4_1>, Member<kQ5_0, Q5_0>, Member<kQ5_1, Q5_1>, Member<kQ8_0, Q8_0>, Member<kIQ4_NL, IQ4_NL>,
           Member<kIQ4_XS, IQ4_XS>>::kernels();

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
