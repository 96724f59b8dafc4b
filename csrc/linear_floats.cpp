// Products with float weights. Output of a token and a row: acc = 0; for k ascending acc = fma(weight, x, acc), lanes are rows: the same at
// every M, tile and level. (bf16 dot instructions would be faster where they exist; they round differently and flush what is tiny.)
#include "linear_floats.h"

#include <string.h>

#include "simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr size_t kTile = 12;             // tokens whose sums fit the registers
#elif defined(__AVX2__)
constexpr size_t kTile = 6;
#else
constexpr size_t kTile = 1;
#endif
constexpr size_t kAhead = 1024;          // bytes that a single token's stream is read ahead

size_t element_bytes(int format) { return format == kF32 ? 4 : 2; }

template <int Format>
inline Vec weights(const uint8_t* p) {
    if (Format == kF32) return load(reinterpret_cast<const float*>(p));
    if (Format == kF16) return load_half(reinterpret_cast<const uint16_t*>(p));
    return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

// `M` tokens times one block, of whose rows `columns` exist.
template <int Format, size_t M>
void tile(const uint8_t* data, size_t k, const float* x, size_t x_stride, float* out, size_t out_stride, bool add, size_t columns) {
    constexpr size_t kBytes = kLanes * (Format == kF32 ? 4 : 2);
    Vec sums[M];
    for (size_t t = 0; t < M; ++t) sums[t] = zero();
    for (size_t i = 0; i < k; ++i) {
        if (M == 1) __builtin_prefetch(data + i * kBytes + kAhead);
        const Vec w = weights<Format>(data + i * kBytes);
        for (size_t t = 0; t < M; ++t) sums[t] = fma(w, all(x[t * x_stride + i]), sums[t]);
    }
    for (size_t t = 0; t < M; ++t) {
        float* at = out + t * out_stride;
        const Vec before = add ? load_first(at, columns) : zero();
        store_first(at, add ? before + sums[t] : sums[t], columns);
    }
}

template <int Format, size_t M>
void some(size_t m, const uint8_t* data, size_t k, const float* x, size_t x_stride, float* out, size_t out_stride, bool add, size_t columns) {
    if (m == M)
        tile<Format, M>(data, k, x, x_stride, out, out_stride, add, columns);
    else if constexpr (M > 1)
        some<Format, M - 1>(m, data, k, x, x_stride, out, out_stride, add, columns);
}

template <int Format>
void blocks(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * element_bytes(Format);
    for (size_t block = first; block < first + count; ++block) {
        const size_t column = block * kBlockRows, left = matrix.n - column, columns = left < kBlockRows ? left : kBlockRows;
        for (size_t t = 0; t < m; t += kTile)
            some<Format, kTile>(m - t < kTile ? m - t : kTile, matrix.data + block * bytes, matrix.k, x + t * x_stride, x_stride,
                                to.out + t * to.stride + column, to.stride, to.add, columns);
    }
}

}  // namespace

size_t float_packed_bytes(int format, size_t n, size_t k) { return (n + kBlockRows - 1) / kBlockRows * kBlockRows * k * element_bytes(format); }

void pack_floats(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    const size_t size = element_bytes(matrix.format), bytes = matrix.k * kBlockRows * size;
    for (size_t block = first; block < first + count; ++block) {
        uint8_t* data = packed + block * bytes;
        memset(data, 0, bytes);
        for (size_t r = 0; r < kBlockRows && block * kBlockRows + r < matrix.n; ++r) {
            const uint8_t* row = rows + (block * kBlockRows + r) * row_bytes;
            for (size_t i = 0; i < matrix.k; ++i) memcpy(data + (i * kBlockRows + r) * size, row + i * size, size);
        }
    }
}

void unpack_floats(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    const size_t size = element_bytes(matrix.format), bytes = matrix.k * kBlockRows * size;
    for (size_t row = first * kBlockRows; row < matrix.n && row < (first + count) * kBlockRows; ++row) {
        const uint8_t* data = matrix.data + row / kBlockRows * bytes + row % kBlockRows * size;
        for (size_t i = 0; i < matrix.k; ++i) memcpy(rows + row * row_bytes + i * size, data + i * kBlockRows * size, size);
    }
}

void multiply_floats(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count, uint8_t*) {
    if (matrix.format == kF32)
        blocks<kF32>(matrix, x, x_stride, m, to, first, count);
    else if (matrix.format == kF16)
        blocks<kF16>(matrix, x, x_stride, m, to, first, count);
    else
        blocks<kBF16>(matrix, x, x_stride, m, to, first, count);
}

void float_row(const Matrix& matrix, size_t row, float* out) {
    const size_t size = element_bytes(matrix.format);
    const uint8_t* data = matrix.data + row / kBlockRows * matrix.k * kBlockRows * size;
    for (size_t i = 0; i < matrix.k; ++i) {
        const uint8_t* at = data + i * kBlockRows * size;
        float lanes[kLanes];
        store(lanes, matrix.format == kF32 ? weights<kF32>(at) : matrix.format == kF16 ? weights<kF16>(at) : weights<kBF16>(at));
        out[i] = lanes[row % kBlockRows];
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
