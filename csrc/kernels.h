// The table of kernels that every ISA level exports. Memory belongs to the caller.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridgeline {

constexpr std::size_t kGroup = 32;         // elements of a quantisation group
constexpr std::size_t kQ8_0Bytes = 34;     // fp16 scale, then 32 int8 codes

struct Kernels {
    // x [rows, k] fp32 -> codes [rows, k] int8, scales [rows, k / 32] fp32. A group that holds a value which is not
    // finite gets the scale NaN and codes 0.
    void (*quantise)(const float* x, std::int8_t* codes, float* scales, std::size_t rows, std::size_t k);

    // out [m, n] = codes [m, k] * weights [n, k]^T: integers inside a group, one fp32 accumulator an output,
    // groups ascending, no FMA. `weight_stride` is the bytes from one row of blocks to the next.
    void (*q8_0_linear)(const std::uint8_t* weights, std::size_t weight_stride, const std::int8_t* codes,
                        const float* scales, float* out, std::size_t m, std::size_t n, std::size_t k);
};

}  // namespace ridgeline
