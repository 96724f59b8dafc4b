// Kernels of the formats whose codes choose values of a table.
#include "linear_tables.h"

#include "linear_family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

const FamilyKernels kTables = Family<Member<kIQ4_NL, IQ4_NL>, Member<kIQ4_XS, IQ4_XS>>::kernels();

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
