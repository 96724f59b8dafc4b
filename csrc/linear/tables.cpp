// Kernels of the formats whose codes choose values of a table.
#include "linear/tables.h"

#include "linear/family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

const FamilyKernels kTables = Family<Member<kIQ4_NL, IQ4_NL>, Member<kIQ4_XS, IQ4_XS>>::kernels();

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
