// Which levels this processor and its operating system can run.
#include "runtime/isa.h"

namespace ridgeline {

namespace scalar { extern const Kernels kKernels; }

static bool always() { return true; }

#if defined(__x86_64__)

namespace avx2 { extern const Kernels kKernels; }
namespace avx512vnni { extern const Kernels kKernels; }

// The compiler's builtin reads cpuid and xgetbv: a level counts only where the system saves its registers.
static bool has_avx2() { return __builtin_cpu_supports("avx2"); }
static bool has_avx512vnni() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

const Level kLevels[] = {
    {"scalar", &scalar::kKernels, always},
    {"avx2", &avx2::kKernels, has_avx2},
    {"avx512vnni", &avx512vnni::kKernels, has_avx512vnni},
};
const int kLevelCount = 3;

#else

const Level kLevels[] = {{"scalar", &scalar::kKernels, always}};
const int kLevelCount = 1;

#endif

}  // namespace ridgeline
