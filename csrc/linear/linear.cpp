// Products with packed weights at one ISA level: the table, which family a format belongs to, and the family of scales for 32 inputs.
//
// Output of a token and a row: acc = 0; for groups ascending acc = fma(float(sum of integers), fp32(weight's scale * activation's scale), acc),
// for formats with minima then acc = fma(float(sum of codes), -fp32(minimum * activation's scale), acc). Zeros are taken off the integers. The
// same at every M, tile and level.
#include "linear/linear.h"

#include "linear/family.h"
#include "linear/groups32.h"
#include "runtime/rows.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

const FamilyKernels& family(int format) {
    switch (format) {
        case kF32: case kF16: case kBF16: return kFloats;
        case kFP8: case kNVFP4: return kScaledFloats;
        case kQ4_0: case kQ4_1: case kQ5_0: case kQ5_1: case kQ8_0: case kIQ4_NL: case kIQ4_XS: case kMXFP4: return kGroups32;
        case kTQ1_0: case kTQ2_0: case kIQ1_S: case kIQ1_M: case kIQ2_XXS: case kIQ2_XS: case kIQ2_S: case kIQ3_XXS: case kIQ3_S: return kTables;
        case kInt8: case kInt4: return kGrouped;
        case kQ8_0Screened: return kScreened;
        case kF32Split: return kSplit;
        default: return kKQuants;
    }
}

size_t packed_bytes(int format, size_t n, size_t k, size_t group) { return family(format).packed_bytes(format, n, k, group); }

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    family(matrix.format).pack(matrix, rows, row_bytes, packed, first, count);
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    family(matrix.format).unpack(matrix, rows, row_bytes, first, count);
}

void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    family(matrix.format).multiply(matrix, x, m, to, first, count, scratch);
}

void multiply_dense(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                    uint8_t* scratch) {
    const auto work = matrix.format == kF32Split ? multiply_split : multiply_floats;
    work(matrix, x, x_stride, m, to, first, count, scratch);
}

void row(const Matrix& matrix, size_t row, float* out) { family(matrix.format).row(matrix, row, out); }

void add_residual(const float* residual, size_t count, float* out) {
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(out + i, load(residual + i) + load(out + i));
    if (i < count) store_first(out + i, load_first(residual + i, count - i) + load_first(out + i, count - i), count - i);
}

}  // namespace

void embed(const Embed& op, const Step& step, size_t row) {
    const int32_t id = op.by_position ? step.positions[row] : step.ids[row];
    family(op.table.format).row(op.table, static_cast<size_t>(id), op.out + row * op.table.k);
}

const FamilyKernels kGroups32 =
    Family<Member<kQ4_0, Q4_0>, Member<kQ4_1, Q4_1>, Member<kQ5_0, Q5_0>, Member<kQ5_1, Q5_1>, Member<kQ8_0, Q8_0>, Member<kIQ4_NL, IQ4_NL>,
           Member<kIQ4_XS, IQ4_XS>, Member<kMXFP4, MXFP4>>::kernels();

extern const LinearKernels kLinear;
const LinearKernels kLinear = {packed_bytes, pack, unpack, multiply, multiply_dense, row, splits, add_residual, left_out, fit_rows, measure_token, screen};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
