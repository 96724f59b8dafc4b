// Matrices of adapters in codes of 8 bits, as kernels read them: see LoraPair in runtime/ops.def.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

constexpr size_t kCodeSpan = 256;        // columns of A, or outputs of B, that share a scale for each rank
constexpr int kCodeZero = 128;           // codes have no sign

// A or B [rank, width], whose numbers lie `down` and `across` apart.
struct LowRank {
    const float* numbers;
    size_t rank, width, down, across;
};

size_t packed_codes_bytes(size_t rank, size_t width, bool is_b);
// Writes all but padding, to memory that is zero.
void pack_codes(const LowRank& matrix, bool is_b, uint8_t* packed);

}  // namespace ridgeline
