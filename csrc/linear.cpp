// Products with packed weights at one ISA level: the table, and how a call is cut into tiles.
//
// Output of a token and a row: acc = 0; for groups ascending acc = fma(float(sum of integers), fp32(weight's scale * activation's scale), acc),
// for formats with minima then acc = fma(float(sum of codes), -fp32(minimum * activation's scale), acc). The same at every M, tile and level.
#include "linear.h"

#include "linear_direct.h"
#include "linear_floats.h"
#include "linear_pack.h"
#include "linear_tile.h"

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

bool of_floats(int format) { return format <= kBF16; }

size_t packed_bytes(int format, size_t n, size_t k, size_t) {
    if (of_floats(format)) return float_packed_bytes(format, n, k);
    size_t bytes = 0;
    with_format(format, [&](auto f) {
        using F = decltype(f);
        if (k > 0 && k % F::kSpan == 0) bytes = (n + kBlockRows - 1) / kBlockRows * block_bytes<F>(k);
    });
    return bytes;
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    if (of_floats(matrix.format)) return pack_floats(matrix, rows, row_bytes, packed, first, count);
    with_format(matrix.format, [&](auto f) {
        for (size_t block = first; block < first + count; ++block) pack_block<decltype(f)>(matrix, rows, row_bytes, packed, block);
    });
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    if (of_floats(matrix.format)) return unpack_floats(matrix, rows, row_bytes, first, count);
    with_format(matrix.format, [&](auto f) {
        for (size_t block = first; block < first + count; ++block) unpack_block<decltype(f)>(matrix, rows, row_bytes, block);
    });
}

// A tile at a time straight from the records.
template <class F>
void multiply_directly(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count) {
    for (size_t block = first; block < first + count; ++block) {
        const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
        const uint8_t* data = matrix.data + block * block_bytes<F>(matrix.k);
        for (size_t from = 0; from < m; from += kTile) {
            const size_t here = m - from < kTile ? m - from : kTile;
            float* out = to.out + from * to.stride + block * kBlockRows;
            direct<F, kTile>(here, data, matrix.k, tokens(x, matrix.k, from), out, to.stride, to.add, columns);
        }
    }
}

void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    with_format(matrix.format, [&](auto f) {
        using F = decltype(f);
#if defined(__AVX2__) && !defined(__AVX512F__)
        if (const size_t panel = panel_tokens<F>(matrix.k); m > kDirectTokens && panel > 0) {
            for (size_t from = 0; from < m; from += panel) {
                const Product part = {to.out + from * to.stride, to.stride, to.add};
                multiply_panel<F>(matrix, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, part, first, count, scratch);
            }
            return;
        }
#endif
        (void)scratch;
        multiply_directly<F>(matrix, x, m, to, first, count);
    });
}

void row(const Matrix& matrix, size_t row, float* out) {
    if (of_floats(matrix.format)) return float_row(matrix, row, out);
    with_format(matrix.format, [&](auto f) { row_floats<decltype(f)>(matrix, row, out); });
}

}  // namespace

extern const LinearKernels kLinear;
const LinearKernels kLinear = {packed_bytes, pack, unpack, multiply, multiply_floats, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
