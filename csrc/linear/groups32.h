// Formats with one scale for 32 inputs, stored next to the codes: Q4_0, Q5_0, Q8_0.
//
// A format says: how codes are coded in a record (Coding); kSpan inputs and kFileBytes bytes of a block in the file; kHead bytes in front of
// the records of a span and kScales bytes behind the codes of each; code - kZero is the weight's integer; kParts scales for a record's 32
// inputs; kMinima: minima beside them. Functions: `codes` of a file's block [kSpan] and back, `scales` of row r into a packed span and back,
// and `floats`: what a record's integers are multiplied by, [kParts] times 16 rows, and the minima that are taken off.
#pragma once

#include "linear/quads.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

inline void copy_half(uint8_t* to, const uint8_t* from) { memcpy(to, from, 2); }
inline Vec halves(const uint8_t* p) { return load_half(p); }

// `count` bytes whose lower nibbles are the first codes, eight at a time.
inline void split_nibbles(const uint8_t* bytes, uint8_t* codes, size_t count = 16) {
    for (size_t i = 0; i < count; i += 8) {
        uint64_t eight, low, high;
        memcpy(&eight, bytes + i, 8);
        low = eight & 0x0f0f0f0f0f0f0f0fu, high = eight >> 4 & 0x0f0f0f0f0f0f0f0fu;
        memcpy(codes + i, &low, 8);
        memcpy(codes + i + count, &high, 8);
    }
}
inline void join_nibbles(uint8_t* bytes, const uint8_t* codes, size_t count = 16) {
    for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + count] & 15) << 4);
}
// 32 bits that are the fifth bits of 32 codes, eight at a time: byte i of `spread` keeps bit i.
inline void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
    for (size_t i = 0; i < 4; ++i) {
        const uint64_t spread = bits[i] * 0x0101010101010101u & 0x8040201008040201u;
        uint64_t eight;
        memcpy(&eight, codes + 8 * i, 8);
        eight |= (spread + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
        memcpy(codes + 8 * i, &eight, 8);
    }
}
inline void take_fifth_bits(uint8_t* bits, const uint8_t* codes) {
    memset(bits, 0, 4);
    for (size_t i = 0; i < 32; ++i) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (codes[i] >> 4 & 1) << i % 8);
}

// d fp16 first in the file's block, behind the codes in the record.
template <class Codings, int kCentre, size_t kBlockBytes>
struct ScaledGroup {
    using Coding = Codings;
    static constexpr size_t kSpan = 32, kFileBytes = kBlockBytes, kHead = 0, kScales = 32, kParts = 1;
    static constexpr int kZero = kCentre;
    static constexpr bool kMinima = false;
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) { copy_half(span + Coding::kBytes + 2 * row, block); }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) { copy_half(block, span + Coding::kBytes + 2 * row); }
    static void floats(const uint8_t*, const uint8_t* scales, Vec* scale, Vec*) { scale[0] = halves(scales); }
};

// d, 32 nibbles: (q - 8) d.
struct Q4_0 : ScaledGroup<Codings<4>, 8, 18> {
    static void codes(const uint8_t* block, uint8_t* codes) { split_nibbles(block + 2, codes); }
    static void set_codes(uint8_t* block, const uint8_t* codes) { join_nibbles(block + 2, codes); }
};

// d, 32 fifth bits, 32 nibbles: (q - 16) d.
struct Q5_0 : ScaledGroup<OwnBytes<5>, 16, 22> {
    static void codes(const uint8_t* block, uint8_t* codes) {
        split_nibbles(block + 6, codes);
        add_fifth_bits(block + 2, codes);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        join_nibbles(block + 6, codes);
        take_fifth_bits(block + 2, codes);
    }
};

// d, 32 signed bytes: q d. Packed as q + 128.
struct Q8_0 : ScaledGroup<Codings<8>, 128, 34> {
    static void codes(const uint8_t* block, uint8_t* codes) {
        for (size_t i = 0; i < 32; ++i) codes[i] = block[2 + i] ^ 0x80;
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t i = 0; i < 32; ++i) block[2 + i] = codes[i] ^ 0x80;
    }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
