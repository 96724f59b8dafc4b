// Families of formats at one ISA level, each a source of its own, so that they are compiled side by side; and the kernels of a quantised family,
// made from what each format says of itself.
#pragma once

#include <type_traits>

#include "linear/direct.h"
#include "runtime/platform.h"
#include RIDGELINE_GROUP_TILES
#include RIDGELINE_SPAN_TILES

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
extern const FamilyKernels kScaledFloats;  // kFP8, NVFP4
extern const FamilyKernels kGroups32;    // Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4
extern const FamilyKernels kKQuants;     // Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
extern const FamilyKernels kTables;      // TQ1, TQ2, IQ1, IQ2, IQ3
extern const FamilyKernels kGrouped;     // kInt8, kInt4
extern const FamilyKernels kScreened;    // kQ8_0Screened
extern const FamilyKernels kSplit;       // kF32Split

void multiply_floats(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                     uint8_t* scratch);
void multiply_split(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                    uint8_t* scratch);
bool splits();
void left_out(const Matrix& matrix, double* energies);
void fit_rows(const Matrix& matrix, const ChannelScales& channels, size_t first, size_t count, float* rows, uint8_t* scratch);
void measure_token(const Codes& x, size_t k, size_t token, const Screening& of);
bool screen(const Matrix& matrix, const Codes& x, const Screening& of, size_t first, size_t count, uint8_t* scratch);

namespace {

// Calls `each` for the spans of block `block`: (index in k of the file's block, its place in the packed block).
template <class F, class Each>
void for_spans(const Matrix& matrix, size_t block, const Each& each) {
    for (size_t span = 0; span < matrix.k / F::kSpan; ++span) each(span, block * block_bytes<F>(matrix.k) + span * kSpanBytes<F>);
}

// A span of 16 rows: `files` are their blocks in the file.
template <class F>
void pack_span(const uint8_t* const* files, uint8_t* span) {
    uint8_t codes[kBlockRows][F::kSpan];
    for (size_t r = 0; r < kBlockRows; ++r) {
        F::codes(files[r], codes[r]);
        F::pack_scales(files[r], span, r);
    }
    for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g) {
        uint8_t quads[kGroupQuads][kQuadBytes];
        for (size_t r = 0; r < kBlockRows; ++r)
            for (size_t t = 0; t < kGroupQuads; ++t) set_word(quads[t] + 4 * r, word(codes[r] + g * kCodeGroup + 4 * t));
        Quad all[kGroupQuads];
        for (size_t t = 0; t < kGroupQuads; ++t) all[t] = load_quad(quads[t]);
        F::Coding::write(span + F::kHead + g * kRecordBytes<F>, all);
    }
}

template <class F>
void unpack_row(uint8_t* file, const uint8_t* span, size_t row) {
    uint8_t codes[F::kSpan];
    for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g) F::Coding::read(span + F::kHead + g * kRecordBytes<F>, row, codes + g * kCodeGroup);
    F::set_codes(file, codes);
    F::unpack_scales(file, span, row);
}

template <class F>
void pack_block(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t block) {
    const uint8_t nothing[F::kFileBytes] = {};
    for_spans<F>(matrix, block, [&](size_t span, size_t place) {
        const uint8_t* files[kBlockRows];
        for (size_t r = 0; r < kBlockRows; ++r) {
            const size_t row = block * kBlockRows + r;
            files[r] = row < matrix.n ? rows + row * row_bytes + span * F::kFileBytes : nothing;
        }
        pack_span<F>(files, packed + place);
    });
}

template <class F>
void unpack_block(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t block) {
    for_spans<F>(matrix, block, [&](size_t span, size_t place) {
        for (size_t row = block * kBlockRows; row < matrix.n && row < (block + 1) * kBlockRows; ++row)
            unpack_row<F>(rows + row * row_bytes + span * F::kFileBytes, matrix.data + place, row % kBlockRows);
    });
}

// Products first, then the minimum off: as compute/quant dequantises.
template <class F>
void row_floats(const Matrix& matrix, size_t row, float* out) {
    const size_t r = row % kBlockRows;
    for_spans<F>(matrix, row / kBlockRows, [&](size_t span, size_t place) {
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g) {
            const uint8_t *head = matrix.data + place, *record = head + F::kHead + g * kRecordBytes<F>;
            Vec scale[F::kParts], minimum[F::kParts];
            float scales[F::kParts][kLanes], minima[F::kParts][kLanes];
            F::floats(head, record + F::Coding::kBytes, scale, minimum);
            for (size_t part = 0; part < F::kParts; ++part) {
                store(scales[part], scale[part]);
                if (F::kMinima) store(minima[part], minimum[part]);
            }
            uint8_t codes[kCodeGroup];
            F::Coding::read(record, r, codes);
            float* to = out + span * F::kSpan + g * kCodeGroup;
            for (size_t i = 0; i < kCodeGroup; ++i) {
                const size_t part = i / (kCodeGroup / F::kParts);
                const float code = static_cast<float>(F::Coding::value(codes[i]) - F::kZero);
                to[i] = (kZerosOfRows<F> ? code - minima[part][r] : code) * scales[part][r];
                if (F::kMinima && !kZerosOfRows<F>) to[i] -= minima[part][r];
            }
        }
    });
}

// Calls `each` for `count` blocks, kStreams of them at a time in streams of ascending blocks, and for what is left fewer:
// (how many, the first, blocks from one to the next).
template <int kStreams, class Each>
void for_streams(size_t first, size_t count, const Each& each) {
    const size_t apart = count / kStreams;
    for (size_t block = first; block < first + apart; ++block) each(std::integral_constant<int, kStreams>(), block, apart);
    if constexpr (kStreams > 1) for_streams<kStreams / 2>(first + kStreams * apart, count - kStreams * apart, each);
}

// Calls `work` with the number of streams that `m` tokens read.
template <class F, int kStreams = kReadStreams, class Work>
void with_streams(size_t m, const Work& work) {
    if constexpr (kStreams > 1)
        if (kStreams > streams_of(m, F::kIntegerSpans) || (m == 1 && kStreams > 2 && reads_two_streams())) return with_streams<F, kStreams / 2>(m, work);
    work(std::integral_constant<int, kStreams>());
}

// Tokens that read so many streams, at most.
template <class F, int kStreams>
constexpr int most_of() {
    int most = kTogether<F>;
    while (most > 1 && streams_of(static_cast<size_t>(most), F::kIntegerSpans) < kStreams) --most;
    return most;
}

// A few tokens at a time straight from the records, in pieces that are as even as they can be: the reading costs each of them the same.
template <class F>
void multiply_directly(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    if (m == 0) return;
    size_t pieces = (m + kTogether<F> - 1) / kTogether<F>, each = 0;   // words of the starts of a piece
    uint32_t* starts = reinterpret_cast<uint32_t*>(scratch);
    if constexpr (begins<F>()) {
        each = matrix.k / kCodeGroup * F::kParts * kTogether<F>;
        if (pieces * each * sizeof(uint32_t) > kLinearScratch) pieces = m, each = 0;
    }
    const size_t together = (m + pieces - 1) / pieces;
    const auto here = [&](size_t from) { return m - from < together ? m - from : together; };
    if constexpr (begins<F>())
        for (size_t i = 0; together > 1 && i * together < m; ++i)
            begin_parts<F>(tokens(x, matrix.k, i * together), here(i * together), matrix.k, starts + i * each);
    const size_t bytes = block_bytes<F>(matrix.k);
    const auto multiply = [&](auto streams, size_t block, size_t apart) {
        constexpr int kStreams = streams, kMost = most_of<F, kStreams>();
        for (size_t i = 0, from = 0; from < m; ++i, from += together) {
            Tokens of = tokens(x, matrix.k, from);
            of.starts = starts + i * each;
            Vec sums[kStreams * kMost];
            direct<F, kMost, kStreams>(here(from), matrix.data + block * bytes, apart * bytes, matrix.k, of, sums);
            for (size_t j = 0; j < kStreams * here(from); ++j) {
                const size_t token = from + j % here(from), column = block + j / here(from) * apart;
                write(sums[j], to.out + token * to.stride + column * kBlockRows, columns_of(matrix, column));
            }
        }
    };
    with_streams<F>(together, [&](auto streams) { for_streams<streams>(first, count, multiply); });
}

// Outputs of many tokens, or false: there are not so many. At levels with kTiles.
template <class F>
bool multiply_tiled(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch);

template <class F>
void multiply_with(const Matrix& matrix, const Codes& given, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    Codes x = given;
    if constexpr (F::kIntegerSpans) x.stepped = any_stepped<F>(x, matrix.k, m);
    if constexpr (kTiles)
        if (multiply_tiled<F>(matrix, x, m, to, first, count, scratch)) return;
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
        with(matrix.format, [&](auto f) { multiply_with<decltype(f)>(matrix, x, m, to, first, count, scratch); });
    }
    static void row(const Matrix& matrix, size_t row, float* out) {
        with(matrix.format, [&](auto f) { row_floats<decltype(f)>(matrix, row, out); });
    }
    static constexpr FamilyKernels kernels() { return {packed_bytes, pack, unpack, multiply, row}; }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
