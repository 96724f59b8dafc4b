// The products of formats of spans: which tokens go where.
#pragma once

#include "linear/family.h"
#include "linear/span_tile.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// At most so many tokens are faster straight from the records, a tile at a time.
template <class F>
constexpr size_t kDirectSpanTokens = F::Coding::kBits == 8 ? 8 : F::Coding::kBits == 6 ? 3 : 6;

// A tile of tokens at a time straight from the records.
template <class F>
void multiply_spans_directly(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count) {
    const size_t apart = blocks_apart(m, count);
    multiply_streams<F>(matrix, tokens(x, matrix.k, 0), to.out, first, apart, add_spans<F, 1, kStreams>);
    for (size_t block = first + kStreams * apart; block < first + count; ++block) {
        const size_t columns = columns_of(matrix, block);
        const uint8_t* data = matrix.data + block * block_bytes<F>(matrix.k);
        for (size_t from = 0; from < m; from += kTile) {
            const Product part = {to.out + from * to.stride + block * kBlockRows, to.stride};
            direct_spans<F, kTile>(m - from < kTile ? m - from : kTile, data, matrix.k, tokens(x, matrix.k, from), part, columns);
        }
    }
}

template <class F>
void multiply_spans(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (const size_t panel = span_panel<F>(matrix.k); m > kDirectSpanTokens<F> && panel > 0) {
        for (size_t from = 0; from < m; from += panel) {
            const Product part = {to.out + from * to.stride, to.stride};
            multiply_panel_of_spans<F>(matrix, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, part, first, count, scratch);
        }
        return;
    }
#endif
    (void)scratch;
    multiply_spans_directly<F>(matrix, x, m, to, first, count);
}

// The products of a family, by the number of the format.
template <class Members>
void multiply_family(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    Members::with(matrix.format, [&](auto f) { multiply_spans<decltype(f)>(matrix, x, m, to, first, count, scratch); });
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
