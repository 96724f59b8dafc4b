// What the sources of one ISA level's products share: the families of formats, each a source of its own.
#pragma once

#include "linear/linear.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

// As in LinearKernels, for the formats of a family; `packed_bytes` is 0 for the others, and the rest must not meet them.
struct FamilyKernels {
    size_t (*packed_bytes)(int format, size_t n, size_t k, size_t group);
    void (*pack)(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count);
    void (*unpack)(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count);
    void (*multiply)(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch);
    void (*row)(const Matrix& matrix, size_t row, float* out);
};

extern const FamilyKernels kFloats;      // F32, F16, BF16
extern const FamilyKernels kGroups32;    // Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4
extern const FamilyKernels kKQuants;     // Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
extern const FamilyKernels kTables;      // TQ1, TQ2, IQ1, IQ2, IQ3
extern const FamilyKernels kGrouped;     // kInt8, kInt4
extern const FamilyKernels kScreened;    // kQ8_0Screened

void multiply_floats(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                     uint8_t* scratch);
void measure_token(const Codes& x, size_t k, size_t token, const Screening& of);
bool screen(const Matrix& matrix, const Codes& x, const Screening& of, size_t first, size_t count, uint8_t* scratch);

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
