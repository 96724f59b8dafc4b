// The kernels of a family of quantised formats, made from what each format says of itself. A family is one source, so that families are
// compiled side by side.
#pragma once

#include "linear/families.h"
#include "linear/pack.h"
#include "linear/tile.h"

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

// A tile at a time straight from the records.
template <class F>
void multiply_directly(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    size_t step = kTile;
    uint32_t* starts = nullptr;
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (kCentredSums<F, kTile> && m > 2) {               // m is at most a tile
        if (const size_t groups = matrix.k / kCodeGroup; groups * 16 <= kLinearScratch)
            prepare_starts(x, m, groups, starts = reinterpret_cast<uint32_t*>(scratch));
        else
            step = 2;                                    // too long a row for scratch: two tokens need no starts
    }
#endif
    (void)scratch;
    const size_t apart = blocks_apart(m, count);
    multiply_streams<F>(matrix, tokens(x, matrix.k, 0), to.out, first, apart, add_records<F, 1, kStreams>);
    for (size_t block = first + kStreams * apart; block < first + count; ++block) {
        const size_t columns = columns_of(matrix, block);
        const uint8_t* data = matrix.data + block * block_bytes<F>(matrix.k);
        for (size_t from = 0; from < m; from += step) {
            const size_t here = m - from < step ? m - from : step;
            Tokens part = tokens(x, matrix.k, from);
            part.starts = starts;
            float* out = to.out + from * to.stride + block * kBlockRows;
            direct<F, kTile>(here, data, matrix.k, part, out, to.stride, columns);
        }
    }
}

template <class F>
void multiply_by(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (m > kDirectTokens<F>) {
        const size_t part = part_inputs<F>(matrix.k, m), panel = panel_tokens<F>(part);
        for (size_t from = 0; from < m; from += panel) {
            const Product rows = {to.out + from * to.stride, to.stride};
            multiply_panel<F>(matrix, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, part, rows, first, count, scratch);
        }
        return;
    }
#endif
    multiply_directly<F>(matrix, x, m, to, first, count, scratch);
}

// A format and its number.
template <int kNumber, class Format>
struct Member {
    static constexpr int kFormat = kNumber;
    using F = Format;
};

template <class... Members>
struct Family {
    // Calls `work` with the format of this number, if it is a member.
    template <class Work>
    static void with(int format, const Work& work) {
        (void)((format == Members::kFormat && (work(typename Members::F()), true)) || ...);
    }
    static size_t packed_bytes(int format, size_t n, size_t k, size_t) {
        size_t bytes = 0;
        with(format, [&](auto f) {
            using F = decltype(f);
            if (k > 0 && k % F::kSpan == 0) bytes = (n + kBlockRows - 1) / kBlockRows * block_bytes<F>(k);
        });
        return bytes;
    }
    static void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
        with(matrix.format, [&](auto f) {
            for (size_t block = first; block < first + count; ++block) pack_block<decltype(f)>(matrix, rows, row_bytes, packed, block);
        });
    }
    static void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
        with(matrix.format, [&](auto f) {
            for (size_t block = first; block < first + count; ++block) unpack_block<decltype(f)>(matrix, rows, row_bytes, block);
        });
    }
    static void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
        with(matrix.format, [&](auto f) { multiply_by<decltype(f)>(matrix, x, m, to, first, count, scratch); });
    }
    static void row(const Matrix& matrix, size_t row, float* out) {
        with(matrix.format, [&](auto f) { row_floats<decltype(f)>(matrix, row, out); });
    }
    static constexpr FamilyKernels kernels() { return {packed_bytes, pack, unpack, multiply, row}; }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
