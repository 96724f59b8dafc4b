// Products with packed weights (`Matrix` of runtime/ops.def): what the kernels of one ISA level offer. Memory belongs to the caller.
//
// A packed matrix is cut into blocks of 16 rows; the bytes of a block are consecutive, in the order in which the kernels
// read them, so that a thread that takes ascending blocks reads one ascending stream. The layout is the same at every ISA level.
#pragma once

#include "runtime/ops.h"

namespace ridgeline {

constexpr size_t kBlockRows = 16;        // rows of a packed block; the last block is padded with zero rows
constexpr size_t kCodeGroup = 32;        // activations that share a scale, at least; those of a scale in memory
constexpr size_t kSteppedGroup = 256;    // activations whose scales may differ, by powers of two up to 2^kMostSteps
constexpr int kMostSteps = 2;
constexpr size_t kLinearScratch = 1 << 20;  // bytes of scratch that a thread hands to every call

// Activations quantised in groups: x[i, j] ~ scales[i, j / 32] * codes[i, j]. A group is as wide as the span of the matrix at least, and has its
// scale once for every 32 inputs. A group that is not finite has scale NaN and codes 0. Of a stepped group of kSteppedGroup sums count codes in the
// smallest of its scales, and so do products: these are a matrix's of spans as wide.
struct Codes {
    const int8_t* codes;                 // [m, stride], of which k are used
    const float* scales;                 // [m, k / 32]
    const int32_t* sums;                 // [m, k / 16]: sums of 16 codes
    size_t stride;                       // bytes from row to row
    bool stepped = false;                // said by kernels to themselves: some scales of a span differ
};

// Where a product goes: out[i * stride + j] for token i and output j.
struct Product {
    float* out;
    size_t stride;
};

// Outputs of a block: those of the last one may be fewer.
inline size_t columns_of(const Matrix& matrix, size_t block) {
    const size_t left = matrix.n - block * kBlockRows;
    return left < kBlockRows ? left : kBlockRows;
}

// Scales of the inputs of a screened matrix: what its screen leaves out counts times them, a token's codes through them (csrc/screen/channels.h).
struct ChannelScales {
    const int8_t* codes;                 // [k], 1 … 127: the square of a scale is this times the step of its group
    const float* steps;                  // [k / 32]
    const float* inverses;               // [k]: the reciprocals of the squares, or a little more
    float largest;                       // of the scales, or a little more
};

// Upper bounds of outputs of a screened matrix, in eighths: what all tokens of a step share, and what a range of blocks gives.
struct Screening {
    size_t tokens;
    ChannelScales channels;
    const float* rows;                   // [blocks * 16] from `fit`: eighths of what a row's bound adds per size of a token
    float* sizes;                        // [tokens] from `measure`; NaN where a token has no bounds
    int32_t* offsets;                    // [tokens, k / 16]
    float* bounds;                       // [blocks, tokens]: no output of the 16 rows is larger
    float* best;                         // [tokens]: the largest of these
};

struct LinearKernels {
    // Bytes of a packed matrix; 0 for a format that this build does not know, or a shape that it cannot pack.
    size_t (*packed_bytes)(int format, size_t n, size_t k, size_t group);

    // Blocks first … first + count of `matrix` from the file's rows, `row_bytes` apart, into `packed` (the whole matrix's memory).
    // For kInt8 and kInt4 rows are what compute/quant/grouped.py describes, for kFP8 and kNVFP4 what linear/scaled.cpp does.
    void (*pack)(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count);

    // The reverse: the file's rows of some blocks, bit for bit; of kF32Split what it keeps of them.
    void (*unpack)(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count);

    // Outputs of blocks first … first + count for all m tokens. Quantised formats.
    void (*multiply)(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch);

    // The same for kF32, kF16, kBF16, kFP8, kNVFP4 and kF32Split with fp32 activations x [m, stride floats].
    void (*multiply_floats)(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                            uint8_t* scratch);

    // Row `row` as fp32 [k].
    void (*row)(const Matrix& matrix, size_t row, float* out);

    // Whether this machine multiplies kF32Split faster than kF32. Any machine can.
    bool (*splits)();

    // out [count] = residual + out
    void (*add_residual)(const float* residual, size_t count, float* out);

    // Of a sample of a screened matrix's rows: for each input the sum of squares of what the screen leaves out [k].
    void (*left_out)(const Matrix& matrix, double* energies);

    // What bounds of rows add, for blocks first … first + count of a screened matrix, to rows [blocks * 16].
    void (*fit)(const Matrix& matrix, const ChannelScales& channels, size_t first, size_t count, float* rows, uint8_t* scratch);

    // What bounds need of a token: sizes and offsets.
    void (*measure)(const Codes& x, size_t k, size_t token, const Screening& of);

    // Bounds of blocks first … first + count of a screened matrix. False: some are not finite, and none may be used.
    bool (*screen)(const Matrix& matrix, const Codes& x, const Screening& of, size_t first, size_t count, uint8_t* scratch);
};

}  // namespace ridgeline
