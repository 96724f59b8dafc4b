// Products with float weights. Output of a token and a row: acc = 0; for k ascending acc = fma(weight, x, acc), lanes are rows: the same at
// every M, tile and level. (bf16 dot instructions would be faster where they exist; they round differently and flush what is tiny.)
//
// A block's weights stay in the second-level cache while all tokens pass by, tile after tile. (Slices of K widened to fp32 in scratch, with the
// sums kept in memory between them, were slower at every M.)
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
constexpr size_t kAhead = 2048;          // bytes that weights of 16 bits are fetched ahead; wider ones the processor foresees by itself

constexpr size_t element_bytes(int format) { return format == kF32 ? 4 : 2; }

size_t rows_of(const Matrix& matrix, size_t block) {
    const size_t left = matrix.n - block * kBlockRows;
    return left < kBlockRows ? left : kBlockRows;
}

template <int Format>
inline Vec weights(const uint8_t* p) {
    if (Format == kF32) return load(reinterpret_cast<const float*>(p));
    if (Format == kF16) return load_half(reinterpret_cast<const uint16_t*>(p));
    return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

inline void write(Vec sum, float* out, size_t columns) { columns == kLanes ? store(out, sum) : store_first(out, sum, columns); }

// `m` tokens, at most M, times one block, of whose rows `columns` exist.
template <int Format, size_t M>
void tile(size_t m, const uint8_t* data, size_t k, const float* x, size_t x_stride, float* out, size_t out_stride, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return tile<Format, M - 1>(m, data, k, x, x_stride, out, out_stride, columns);
    constexpr size_t kBytes = kLanes * element_bytes(Format);
    Vec sums[M];
    for (size_t t = 0; t < M; ++t) sums[t] = zero();
    for (size_t i = 0; i < k; ++i) {
        if (Format != kF32) __builtin_prefetch(data + i * kBytes + kAhead);
        const Vec w = weights<Format>(data + i * kBytes);
        for (size_t t = 0; t < M; ++t) sums[t] = fma(w, all(x[t * x_stride + i]), sums[t]);
    }
    for (size_t t = 0; t < M; ++t) write(sums[t], out + t * out_stride, columns);
}

// Tiles are of equal size, or differ by one.
template <int Format>
void blocks(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * element_bytes(Format), tiles = (m + kTile - 1) / kTile;
    for (size_t block = first; block < first + count; ++block) {
        const size_t column = block * kBlockRows, columns = rows_of(matrix, block);
        for (size_t i = 0; i < tiles; ++i) {
            const size_t t = m * i / tiles, tokens = m * (i + 1) / tiles - t;
            tile<Format, kTile>(tokens, matrix.data + block * bytes, matrix.k, x + t * x_stride, x_stride, to.out + t * to.stride + column,
                                to.stride, columns);
        }
    }
}

// Rows of elements of `Size` bytes into [k, 16] and back, some inputs at a time so that both sides stay in the first-level cache.
constexpr size_t kCopied = 64;

template <size_t Size>
void interleave(const uint8_t* rows, size_t row_bytes, size_t count, size_t k, uint8_t* to) {
    if (count < kBlockRows) memset(to, 0, k * kBlockRows * Size);
    for (size_t from = 0; from < k; from += kCopied)
        for (size_t r = 0; r < count; ++r)
            for (size_t i = from; i < k && i < from + kCopied; ++i) memcpy(to + (i * kBlockRows + r) * Size, rows + r * row_bytes + i * Size, Size);
}

template <size_t Size>
void separate(const uint8_t* from, size_t k, uint8_t* rows, size_t row_bytes, size_t count) {
    for (size_t start = 0; start < k; start += kCopied)
        for (size_t r = 0; r < count; ++r)
            for (size_t i = start; i < k && i < start + kCopied; ++i) memcpy(rows + r * row_bytes + i * Size, from + (i * kBlockRows + r) * Size, Size);
}

template <int Format>
void row_of(const uint8_t* data, size_t k, float* out) {
    constexpr size_t kSize = element_bytes(Format), kBytes = kBlockRows * kSize;
    for (size_t from = 0; from < k; from += kLanes) {
        const size_t count = k - from < kLanes ? k - from : kLanes;
        uint8_t part[kLanes * kSize] = {};
        for (size_t i = 0; i < count; ++i) memcpy(part + i * kSize, data + (from + i) * kBytes, kSize);
        store_first(out + from, weights<Format>(part), count);
    }
}

}  // namespace

size_t float_packed_bytes(int format, size_t n, size_t k, size_t) {
    return (n + kBlockRows - 1) / kBlockRows * kBlockRows * k * element_bytes(format);
}

void pack_floats(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * element_bytes(matrix.format);
    for (size_t block = first; block < first + count; ++block) {
        const auto work = matrix.format == kF32 ? interleave<4> : interleave<2>;
        work(rows + block * kBlockRows * row_bytes, row_bytes, rows_of(matrix, block), matrix.k, packed + block * bytes);
    }
}

void unpack_floats(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * element_bytes(matrix.format);
    for (size_t block = first; block < first + count; ++block) {
        const auto work = matrix.format == kF32 ? separate<4> : separate<2>;
        work(matrix.data + block * bytes, matrix.k, rows + block * kBlockRows * row_bytes, row_bytes, rows_of(matrix, block));
    }
}

void multiply_floats(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count, uint8_t*) {
    const auto work = matrix.format == kF32 ? blocks<kF32> : matrix.format == kF16 ? blocks<kF16> : blocks<kBF16>;
    work(matrix, x, x_stride, m, to, first, count);
}

void float_row(const Matrix& matrix, size_t row, float* out) {
    const size_t size = element_bytes(matrix.format);
    const auto work = matrix.format == kF32 ? row_of<kF32> : matrix.format == kF16 ? row_of<kF16> : row_of<kBF16>;
    work(matrix.data + row / kBlockRows * matrix.k * kBlockRows * size + row % kBlockRows * size, matrix.k, out);
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
