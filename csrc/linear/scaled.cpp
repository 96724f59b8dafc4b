// How small floats under scales are packed; linear/floats.cpp multiplies them.
//
// A row as packing takes it: of e4m3 its codes, then its scales fp32; of NVFP4 blocks as GGUF has them, or with a group what
// compute/quant/scaled.py describes.
#include <math.h>
#include <string.h>

#include <type_traits>

#include "linear/family.h"
#include "linear/scaled.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Calls `each` for the groups of `inputs` inputs from `from` on: (record's place in a block, first input in the group, how many).
template <int Format, class Each>
inline void for_groups(const Matrix& matrix, size_t from, size_t inputs, const Each& each) {
    const size_t group = Scaled<Format>::group(matrix);
    for (size_t end = from + inputs; from < end;) {
        const size_t first = from % group, left = end - from, count = group - first < left ? group - first : left;
        each(record_place<Format>(matrix, from / group), first, count);
        from += count;
    }
}

constexpr size_t kFileBlock = 36, kFileInputs = 64, kFileScales = 4, kFileCodes = 8;     // NVFP4: 4 scales, 4 times 8 bytes of codes
constexpr size_t kFour = 16;             // inputs that share a scale of NVFP4

template <class Work>
void with(int format, const Work& work) {
    if (format == kFP8) work(std::integral_constant<int, kFP8>());
    else work(std::integral_constant<int, kNVFP4>());
}

size_t packed_bytes(int format, size_t n, size_t k, size_t group) {
    if (k == 0 || (format == kFP8 ? group == 0 : group ? group != kFour || k % kFour != 0 : k % kFileInputs != 0)) return 0;
    size_t bytes = 0;
    with(format, [&](auto f) { bytes = scaled_bytes<f>({format, n, k, group, nullptr}); });
    return (n + kBlockRows - 1) / kBlockRows * bytes;
}

bool is_nan(uint8_t code) { return (code & 127) == 127; }

void pack_row(const Matrix& matrix, const uint8_t* row, uint8_t* block, size_t r, std::integral_constant<int, kFP8>) {
    for_groups<kFP8>(matrix, 0, matrix.k, [&](size_t place, size_t, size_t count) {
        const size_t group = place / record_place<kFP8>(matrix, 1);
        const uint8_t* codes = row + group * matrix.group;
        float scale;
        memcpy(&scale, row + matrix.k + 4 * group, 4);
        bool nan = false;
        for (size_t i = 0; i < count; ++i) nan |= is_nan(block[place + 64 + i * kBlockRows + r] = codes[i]);
        if (nan) scale = NAN;
        memcpy(block + place + 4 * r, &scale, 4);
    });
}

void unpack_row(const Matrix& matrix, uint8_t* row, const uint8_t* block, size_t r, std::integral_constant<int, kFP8>) {
    for_groups<kFP8>(matrix, 0, matrix.k, [&](size_t place, size_t, size_t count) {
        const size_t group = place / record_place<kFP8>(matrix, 1);
        for (size_t i = 0; i < count; ++i) row[group * matrix.group + i] = block[place + 64 + i * kBlockRows + r];
        memcpy(row + matrix.k + 4 * group, block + place + 4 * r, 4);
    });
}

// Calls `each` for the groups of a row of NVFP4: (scale and codes of the file's, scale and first codes of the packed row); then `number` for
// what the row has of the head: (the file's, the packed one's).
template <class Byte, class Packed, class Each, class Number>
void for_sixteens(const Matrix& matrix, Byte* row, Packed* block, size_t r, const Each& each, const Number& number) {
    for (size_t g = 0; g < matrix.k / kFour; ++g) {
        Byte* file = matrix.group ? row + g * (1 + kFileCodes) : row + g / kFileScales * kFileBlock;
        Packed* record = block + record_place<kNVFP4>(matrix, g);
        if (matrix.group) each(file, file + 1, record + r, record + 16 + r);
        else each(file + g % kFileScales, file + kFileScales + g % kFileScales * kFileCodes, record + r, record + 16 + r);
    }
    for (size_t i = 0; i < Scaled<kNVFP4>::head_bytes(matrix) / (4 * kBlockRows); ++i)
        number(row + matrix.k / kFour * (1 + kFileCodes) + 4 * i, block + 4 * (i * kBlockRows + r));
}

void pack_row(const Matrix& matrix, const uint8_t* row, uint8_t* block, size_t r, std::integral_constant<int, kNVFP4>) {
    for_sixteens(matrix, row, block, r, [](const uint8_t* scale, const uint8_t* codes, uint8_t* packed, uint8_t* to) {
        *packed = *scale;
        for (size_t i = 0; i < kFileCodes; ++i) to[i * kBlockRows] = codes[i];
    }, [](const uint8_t* from, uint8_t* to) { memcpy(to, from, 4); });
}

void unpack_row(const Matrix& matrix, uint8_t* row, const uint8_t* block, size_t r, std::integral_constant<int, kNVFP4>) {
    for_sixteens(matrix, row, block, r, [](uint8_t* scale, uint8_t* codes, const uint8_t* packed, const uint8_t* from) {
        *scale = *packed;
        for (size_t i = 0; i < kFileCodes; ++i) codes[i] = from[i * kBlockRows];
    }, [](uint8_t* to, const uint8_t* from) { memcpy(to, from, 4); });
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    with(matrix.format, [&](auto f) {
        const size_t bytes = scaled_bytes<f>(matrix);
        for (size_t block = first; block < first + count; ++block) {
            memset(packed + block * bytes, 0, bytes);
            for (size_t r = 0; r < columns_of(matrix, block); ++r)
                pack_row(matrix, rows + (block * kBlockRows + r) * row_bytes, packed + block * bytes, r, f);
        }
    });
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    with(matrix.format, [&](auto f) {
        for (size_t row = first * kBlockRows; row < matrix.n && row < (first + count) * kBlockRows; ++row)
            unpack_row(matrix, rows + row * row_bytes, matrix.data + row / kBlockRows * scaled_bytes<f>(matrix), row % kBlockRows, f);
    });
}

void row(const Matrix& matrix, size_t row, float* out) {
    constexpr size_t kInputs = 64;
    float floats[kInputs * kBlockRows];
    with(matrix.format, [&](auto f) {
        for (size_t from = 0; from < matrix.k; from += kInputs) {
            const size_t inputs = matrix.k - from < kInputs ? matrix.k - from : kInputs;
            widen_block<f>(matrix, row / kBlockRows, from, inputs, floats);
            for (size_t i = 0; i < inputs; ++i) out[from + i] = floats[i * kBlockRows + row % kBlockRows];
        }
    });
}

}  // namespace

const FamilyKernels kScaledFloats = {packed_bytes, pack, unpack, nullptr, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
