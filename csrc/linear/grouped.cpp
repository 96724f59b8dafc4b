// Kernels of grouped integers, codes of 8 or 4 bits: what the rows of a file are says compute/quant/grouped.py.
//
// Weight: (code - zero) scale. In 32 integers of a product, Σ code x and zero Σ x are both below 2^24: their difference is exact in fp32.
#include "linear/family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// `kInputs` inputs with the scale and the zero of their group: 16 scales fp32 and 16 zeros in front of their records. A block is what a file
// would hold for one row of them: scale, zero, codes.
template <int kCodeBits, size_t kInputs>
struct Grouped {
    using Coding = Codings<kCodeBits>;
    static constexpr bool kIntegerSpans = kInputs > kCodeGroup;
    static constexpr size_t kCodeBytes = kInputs * kCodeBits / 8, kSpan = kInputs, kFileBytes = 5 + kCodeBytes, kScales = 0, kParts = 1;
    static constexpr size_t kHead = kInputs > kCodeGroup ? 96 : 80;      // long spans: a multiple of 32, so that no load crosses a line
    static constexpr int kZero = kCodeBits == 8 ? 128 : 0;   // 8 bits are multiplied as signed ones, and their zeros stored so
    static constexpr bool kMinima = true;
    static constexpr Field kScaleField = Field::kNone;
    static void codes(const uint8_t* block, uint8_t* codes) {
        if (kCodeBits == 8) memcpy(codes, block + 5, kInputs);
        for (size_t i = 0; kCodeBits == 4 && i < kCodeBytes; ++i) codes[2 * i] = block[5 + i] & 15, codes[2 * i + 1] = block[5 + i] >> 4;
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        if (kCodeBits == 8) memcpy(block + 5, codes, kInputs);
        for (size_t i = 0; kCodeBits == 4 && i < kCodeBytes; ++i) block[5 + i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        memcpy(span + 4 * row, block, 4);
        span[64 + row] = static_cast<uint8_t>(block[4] ^ kZero);
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        memcpy(block, span + 4 * row, 4);
        block[4] = static_cast<uint8_t>(span[64 + row] ^ kZero);
    }
    static void floats(const uint8_t* head, const uint8_t*, Vec* scale, Vec* zero) {
        scale[0] = load(reinterpret_cast<const float*>(head)), zero[0] = bytes(head + 64);
    }
    static Vec scale(const uint8_t* head) { return load(reinterpret_cast<const float*>(head)); }
    static Ints zeros(const uint8_t* head) { return integers(head + 64); }
};
template <int kCodeBits, size_t kInputs>
constexpr bool kZerosOfRows<Grouped<kCodeBits, kInputs>> = true;

constexpr size_t kLong = 128, kShort = kCodeGroup;       // inputs of a span: a group is made of whole ones

constexpr int number(int format, size_t group) { return 2 * format + (group % kLong == 0); }
using Integers = Family<Member<number(kInt8, kLong), Grouped<8, kLong>>, Member<number(kInt8, kShort), Grouped<8, kShort>>,
                        Member<number(kInt4, kLong), Grouped<4, kLong>>, Member<number(kInt4, kShort), Grouped<4, kShort>>>;

Matrix of_family(const Matrix& matrix) {
    Matrix same = matrix;
    same.format = number(matrix.format, matrix.group);
    return same;
}

size_t packed_bytes(int format, size_t n, size_t k, size_t group) {
    return group == 0 || group % kCodeGroup != 0 || k % group != 0 ? 0 : Integers::packed_bytes(number(format, group), n, k, group);
}

// Where a row of a file has what belongs to one span.
template <class F>
struct Place {
    size_t codes, scale, zero;
    Place(const Matrix& matrix, size_t span) {
        const size_t groups = matrix.k / matrix.group, group = span * F::kSpan / matrix.group, end = matrix.k / F::kSpan * F::kCodeBytes;
        codes = span * F::kCodeBytes, scale = end + 4 * group, zero = end + 4 * groups + group;
    }
};

template <class F>
void pack_blocks(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t block) {
    for_spans<F>(matrix, block, [&](size_t span, size_t at) {
        const Place<F> place(matrix, span);
        uint8_t blocks[kBlockRows][F::kFileBytes] = {};
        const uint8_t* files[kBlockRows];
        for (size_t r = 0; r < kBlockRows; ++r) {
            const uint8_t* row = rows + (block * kBlockRows + r) * row_bytes;
            files[r] = blocks[r];
            if (block * kBlockRows + r >= matrix.n) continue;
            memcpy(blocks[r], row + place.scale, 4);
            blocks[r][4] = row[place.zero];
            memcpy(blocks[r] + 5, row + place.codes, F::kCodeBytes);
        }
        pack_span<F>(files, packed + at);
    });
}

template <class F>
void unpack_blocks(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t block) {
    for_spans<F>(matrix, block, [&](size_t span, size_t at) {
        const Place<F> place(matrix, span);
        for (size_t r = 0; r < kBlockRows && block * kBlockRows + r < matrix.n; ++r) {
            uint8_t *row = rows + (block * kBlockRows + r) * row_bytes, file[F::kFileBytes];
            unpack_row<F>(file, matrix.data + at, r);
            memcpy(row + place.scale, file, 4);
            row[place.zero] = file[4];
            memcpy(row + place.codes, file + 5, F::kCodeBytes);
        }
    });
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    Integers::with(number(matrix.format, matrix.group), [&](auto f) {
        for (size_t block = first; block < first + count; ++block) pack_blocks<decltype(f)>(matrix, rows, row_bytes, packed, block);
    });
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    Integers::with(number(matrix.format, matrix.group), [&](auto f) {
        for (size_t block = first; block < first + count; ++block) unpack_blocks<decltype(f)>(matrix, rows, row_bytes, block);
    });
}

void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    Integers::with(number(matrix.format, matrix.group), [&](auto f) {
        multiply_with<decltype(f)>(matrix, x, m, to, first, count, scratch);
    });
}

void row(const Matrix& matrix, size_t row, float* out) { Integers::row(of_family(matrix), row, out); }

}  // namespace

const FamilyKernels kGrouped = {packed_bytes, pack, unpack, multiply, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
