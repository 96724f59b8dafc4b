// Small floats under scales, as products with float weights read them: e4m3 of checkpoints, one fp32 scale for `group` inputs of a row; NVFP4 of
// GGUF, one scale of e4m3 without a sign for 16 inputs.
//
// A block of 16 rows is records of a group each: 16 scales, then codes. Weight: value * scale, rounded once to fp32, whatever
// becomes of it: products have the bits of those with the same weights in fp32.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr bool is_scaled(int format) { return format == kFP8 || format == kNVFP4; }

template <int Format>
struct Scaled;

// Codes [inputs, 16] behind 16 scales fp32. Values are 2^-120 of what they mean, and scales, all below 2^8, as much larger. A row's scale is NaN
// where one of its codes is: so is its product.
template <>
struct Scaled<kFP8> {
    static constexpr size_t kScales = 64;
    static size_t group(const Matrix& matrix) { return matrix.group; }
    static size_t code_bytes(size_t inputs) { return inputs * kBlockRows; }
    static Vec scale(const uint8_t* record) { return load(reinterpret_cast<const float*>(record)) * all(0x1p120f); }
    static Vec value(const uint8_t* codes, size_t input) { return load_e4m3(codes + input * kBlockRows); }
};

// Codes [8, 16] behind 16 scales of a byte: the lower bits are input i, the upper ones input i + 8. Values are doubled, scales
// halved and without their sign; 0x7f is 0.
template <>
struct Scaled<kNVFP4> {
    static constexpr size_t kScales = 16;
    static size_t group(const Matrix&) { return 16; }
    static size_t code_bytes(size_t inputs) { return inputs / 2 * kBlockRows; }
    static Vec scale(const uint8_t* record) {
        const Vec small = load_e4m3(record);
        return where_below(all(0x1.cp-112f), small, zero(), magnitude(small)) * all(0x1p119f);
    }
    static Vec value(const uint8_t* codes, size_t input) { return load_e2m1_doubled(codes + input % 8 * kBlockRows, input / 8 * 4); }
};

template <int Format>
size_t scaled_bytes(const Matrix& matrix) {
    using S = Scaled<Format>;
    const size_t group = S::group(matrix);
    return (matrix.k + group - 1) / group * S::kScales + S::code_bytes(matrix.k);
}

// Where the record of a group begins in its block.
template <int Format>
size_t record_place(const Matrix& matrix, size_t group) {
    using S = Scaled<Format>;
    return group * (S::kScales + S::code_bytes(S::group(matrix)));
}

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

constexpr size_t kScaledNear = 1024;     // bytes that each stream is fetched ahead

// Some inputs of a block in fp32: [inputs, 16].
template <int Format>
void widen_block(const Matrix& matrix, size_t block, size_t from, size_t inputs, float* to) {
    using S = Scaled<Format>;
    const uint8_t* data = matrix.data + block * scaled_bytes<Format>(matrix);
    for_groups<Format>(matrix, from, inputs, [&](size_t place, size_t first, size_t count) {
        const uint8_t *record = data + place, *codes = record + S::kScales;
        const Vec scale = S::scale(record);
        for (size_t i = first; i < first + count; ++i, to += kLanes) {
            if (i % 4 == 0) __builtin_prefetch(codes + S::code_bytes(i) + kScaledNear);
            store(to, S::value(codes, i) * scale);
        }
    });
}

// One token with `count` blocks, kStreams of them at a time, as `multiply_streams` of integers.
template <int Format, size_t kStreams>
void multiply_scaled_token(const Matrix& matrix, const float* x, float* out, size_t first, size_t count) {
    using S = Scaled<Format>;
    const size_t bytes = scaled_bytes<Format>(matrix), apart = count / kStreams, stride = apart * bytes;
    for (size_t block = first; block < first + apart; ++block) {
        const uint8_t* data = matrix.data + block * bytes;
        Vec sum[kStreams];
        for (Vec& each : sum) each = zero();
        const float* at = x;
        for_groups<Format>(matrix, 0, matrix.k, [&](size_t place, size_t, size_t inputs) {
            Vec scale[kStreams];
            for (size_t stream = 0; stream < kStreams; ++stream) scale[stream] = S::scale(data + stream * stride + place);
            const uint8_t* codes = data + place + S::kScales;
            for (size_t i = 0; i < inputs; ++i, ++at) {
                const bool line = i % 4 == 0;
                RIDGELINE_UNROLL
                for (size_t stream = 0; stream < kStreams; ++stream) {
                    if (line) __builtin_prefetch(codes + stream * stride + S::code_bytes(i) + kScaledNear);
                    sum[stream] = fma(S::value(codes + stream * stride, i) * scale[stream], all(*at), sum[stream]);
                }
            }
        });
        for (size_t stream = 0; stream < kStreams; ++stream) {
            const size_t of = block + stream * apart, columns = columns_of(matrix, of);
            columns == kBlockRows ? store(out + of * kBlockRows, sum[stream]) : store_first(out + of * kBlockRows, sum[stream], columns);
        }
    }
    if constexpr (kStreams > 1) multiply_scaled_token<Format, kStreams / 2>(matrix, x, out, first + kStreams * apart, count - kStreams * apart);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
