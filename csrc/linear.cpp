// Products with packed weights at one ISA level: the table, and how a call is cut into tiles.
//
// Output of a token and a row: acc = 0; for groups ascending acc = fma(float(sum of integers), fp32(weight's scale * activation's scale), acc),
// for formats with minima then acc = fma(float(sum of codes), -fp32(minimum * activation's scale), acc). The same at every M, tile and level.
#include "linear.h"

#include "linear_direct.h"
#include "linear_pack.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

#if defined(__AVX512VNNI__)
constexpr int kTile = 12;                // tokens that share the reading of a record: as many as registers hold
#elif defined(__AVX2__)
constexpr int kTile = 4;
#else
constexpr int kTile = 1;
#endif

size_t packed_bytes(int format, size_t n, size_t k, size_t) {
    size_t bytes = 0;
    with_format(format, [&](auto f) {
        using F = decltype(f);
        if (k > 0 && k % F::kSpan == 0) bytes = (n + kBlockRows - 1) / kBlockRows * block_bytes<F>(k);
    });
    return bytes;
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    with_format(matrix.format, [&](auto f) {
        for (size_t block = first; block < first + count; ++block) pack_block<decltype(f)>(matrix, rows, row_bytes, packed, block);
    });
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    with_format(matrix.format, [&](auto f) {
        for (size_t block = first; block < first + count; ++block) unpack_block<decltype(f)>(matrix, rows, row_bytes, block);
    });
}

void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t*) {
    with_format(matrix.format, [&](auto f) {
        using F = decltype(f);
        for (size_t block = first; block < first + count; ++block) {
            const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
            const uint8_t* data = matrix.data + block * block_bytes<F>(matrix.k);
            for (size_t from = 0; from < m; from += kTile) {
                const size_t here = m - from < kTile ? m - from : kTile;
                float* out = to.out + from * to.stride + block * kBlockRows;
                direct<F, kTile>(here, data, matrix.k, tokens(x, matrix.k, from), out, to.stride, to.add, columns);
            }
        }
    });
}

void row(const Matrix& matrix, size_t row, float* out) {
    with_format(matrix.format, [&](auto f) { row_floats<decltype(f)>(matrix, row, out); });
}

}  // namespace

extern const LinearKernels kLinear;
const LinearKernels kLinear = {packed_bytes, pack, unpack, multiply, nullptr, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
