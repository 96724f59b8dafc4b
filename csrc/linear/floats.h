// Packed matrices of fp32, fp16 and bf16: [blocks of 16 rows, k, 16], each number as the file stores it.
#pragma once

#include "linear/linear.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

size_t float_packed_bytes(int format, size_t n, size_t k, size_t group);
void pack_floats(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count);
void unpack_floats(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count);
void multiply_floats(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                     uint8_t* scratch);
void float_row(const Matrix& matrix, size_t row, float* out);

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
