// Superblocks of 256 inputs whose groups have integer scales: Q4_K, Q6_K. What a format says stands in groups32.h.
#pragma once

#include "linear/groups32.h"
#include "linear/span.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

inline Vec bytes(const uint8_t* p) {
    int8_t b[kLanes];
    memcpy(b, p, sizeof b);
    return load_int8(b);
}

// 8 scales and 8 minima of 6 bits in 12 bytes.
inline void split_six_bits(const uint8_t* packed, uint8_t* scales, uint8_t* minima) {
    for (size_t j = 0; j < 4; ++j) {
        scales[j] = packed[j] & 63, scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        minima[j] = packed[j + 4] & 63, minima[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}
inline void join_six_bits(uint8_t* packed, const uint8_t* scales, const uint8_t* minima) {
    for (size_t j = 0; j < 4; ++j) {
        packed[j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
        packed[j + 4] = static_cast<uint8_t>(minima[j] | minima[j + 4] >> 4 << 6);
        packed[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
    }
}

// d and dmin fp16 first in the file's block, then 12 bytes of scales and minima. Packed: 16 d, 16 dmin in front of a span; behind the codes of
// a record 16 scales, 16 minima.
template <class Codings, size_t kBlockBytes>
struct AffineSuperblock {
    using Coding = Codings;
    static constexpr size_t kSpan = 256, kFileBytes = kBlockBytes, kHead = 64, kScales = 32, kParts = 1, kRecord = Coding::kBytes + kScales;
    static constexpr int kZero = 0;
    static constexpr bool kMinima = true;
    static constexpr Field kScaleField = Field::kByte, kMinimumField = Field::kByte;
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        uint8_t scales[8], minima[8], *tail = span + kHead + Coding::kBytes + row;
        copy_half(span + 2 * row, block);
        copy_half(span + 32 + 2 * row, block + 2);
        split_six_bits(block + 4, scales, minima);
        for (size_t j = 0; j < 8; ++j) tail[j * kRecord] = scales[j], tail[j * kRecord + 16] = minima[j];
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        uint8_t scales[8], minima[8];
        const uint8_t* tail = span + kHead + Coding::kBytes + row;
        copy_half(block, span + 2 * row);
        copy_half(block + 2, span + 32 + 2 * row);
        for (size_t j = 0; j < 8; ++j) scales[j] = tail[j * kRecord], minima[j] = tail[j * kRecord + 16];
        join_six_bits(block + 4, scales, minima);
    }
    static void floats(const uint8_t* head, const uint8_t* scales, Vec* scale, Vec* minimum) {
        scale[0] = halves(head) * bytes(scales);
        minimum[0] = halves(head + 32) * bytes(scales + 16);
    }
    static Vec scale(const uint8_t* head) { return halves(head); }
    static Vec minimum(const uint8_t* head) { return halves(head + 32); }
};

// Nibbles of 64 inputs in 32 bytes, the lower ones first: q d s - dmin m.
struct Q4_K : AffineSuperblock<Codings<4>, 144> {
    static void codes(const uint8_t* block, uint8_t* codes) {
        for (size_t c = 0; c < 4; ++c) split_nibbles(block + 16 + 32 * c, codes + 64 * c, 32);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t c = 0; c < 4; ++c) join_nibbles(block + 16 + 32 * c, codes + 64 * c, 32);
    }
};

// Two bits of each of 32 bytes, from bit `from` on, are the upper bits of 32 codes.
inline void add_upper_bits(const uint8_t* __restrict bytes, size_t from, uint8_t* __restrict codes) {
    for (size_t i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bytes[i] >> from & 3) << 4);
}

// 128 bytes of nibbles, 64 of upper two bits, 16 signed scales, d: (q - 32) d s. Packed: 16 d in front of a span; behind the codes of a record
// the scales of its first half, 16 rows, and of its second.
struct Q6_K {
    using Coding = OwnBytes<6>;
    static constexpr size_t kSpan = 256, kFileBytes = 210, kHead = 32, kScales = 32, kParts = 2, kRecord = Coding::kBytes + kScales;
    static constexpr int kZero = 32;
    static constexpr bool kMinima = false;
    static constexpr Field kScaleField = Field::kSigned;
    static void codes(const uint8_t* block, uint8_t* codes) {
        for (size_t half = 0; half < 2; ++half) {
            const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
            split_nibbles(low, codes + 128 * half, 64);
            for (size_t quarter = 0; quarter < 4; ++quarter) add_upper_bits(high, 2 * quarter, codes + 128 * half + 32 * quarter);
        }
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        memset(block + 128, 0, 64);
        for (size_t half = 0; half < 2; ++half) {
            uint8_t* high = block + 128 + 32 * half;
            join_nibbles(block + 64 * half, codes + 128 * half, 64);
            for (size_t i = 0; i < 128; ++i) high[i % 32] = static_cast<uint8_t>(high[i % 32] | codes[128 * half + i] >> 4 << 2 * (i / 32));
        }
    }
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        copy_half(span + 2 * row, block + 208);
        uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) tail[j / 2 * kRecord + j % 2 * 16] = block[192 + j];
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        copy_half(block + 208, span + 2 * row);
        const uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) block[192 + j] = tail[j / 2 * kRecord + j % 2 * 16];
    }
    static void floats(const uint8_t* head, const uint8_t* scales, Vec* scale, Vec*) {
        const Vec d = halves(head);
        scale[0] = d * bytes(scales), scale[1] = d * bytes(scales + 16);
    }
    static Vec scale(const uint8_t* head) { return halves(head); }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
