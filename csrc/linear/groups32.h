// Formats of which every 32 inputs have a scale of their own: Q4_0, Q5_0, Q8_0; with an offset too: Q4_1, Q5_1; whose codes of four bits choose
// one of sixteen unevenly spaced values: IQ4_NL, IQ4_XS, MXFP4. What a format says stands in linear/codes.h.
#pragma once

#include "linear/codes.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// d fp16 first in the file's block, behind the codes in the record.
template <class Codings, int kCentre, size_t kBlockBytes>
struct ScaledGroup {
    using Coding = Codings;
    static constexpr bool kIntegerSpans = false;
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

// d and m fp16 first in the file's block: q d + m. Behind the codes of a record 16 d, 16 m.
template <class Codings, size_t kBlockBytes>
struct AffineGroup {
    using Coding = Codings;
    static constexpr bool kIntegerSpans = false;
    static constexpr size_t kSpan = 32, kFileBytes = kBlockBytes, kHead = 0, kScales = 64, kParts = 1;
    static constexpr int kZero = 0;
    static constexpr bool kMinima = true;
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        copy_half(span + Coding::kBytes + 2 * row, block);
        copy_half(span + Coding::kBytes + 32 + 2 * row, block + 2);
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        copy_half(block, span + Coding::kBytes + 2 * row);
        copy_half(block + 2, span + Coding::kBytes + 32 + 2 * row);
    }
    // What is taken off is -m; 0 - m would lose the sign of a zero.
    static void floats(const uint8_t*, const uint8_t* scales, Vec* scale, Vec* minimum) {
        scale[0] = halves(scales);
        minimum[0] = all(-0.0f) - halves(scales + 32);
    }
};

// d, m, 32 nibbles.
struct Q4_1 : AffineGroup<Codings<4>, 20> {
    static void codes(const uint8_t* block, uint8_t* codes) { split_nibbles(block + 4, codes); }
    static void set_codes(uint8_t* block, const uint8_t* codes) { join_nibbles(block + 4, codes); }
};

// d, m, 32 fifth bits, 32 nibbles.
struct Q5_1 : AffineGroup<OwnBytes<5>, 24> {
    static void codes(const uint8_t* block, uint8_t* codes) {
        split_nibbles(block + 8, codes);
        add_fifth_bits(block + 4, codes);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        join_nibbles(block + 8, codes);
        take_fifth_bits(block + 4, codes);
    }
};

// The table's values -127 … 113, + 128. Records hold the file's codes; what is multiplied are 8 bits.
constexpr uint8_t kIQ4Values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

using IQ4Coding = Looked<kIQ4Values, 8>;

// d, 32 nibbles: d value.
struct IQ4_NL : ScaledGroup<IQ4Coding, 128, 18> {
    static void codes(const uint8_t* block, uint8_t* codes) { split_nibbles(block + 2, codes); }
    static void set_codes(uint8_t* block, const uint8_t* codes) { join_nibbles(block + 2, codes); }
};

// Twice the values of e2m1, + 12.
constexpr uint8_t kE2M1Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// A power of two of 8 bits, 32 nibbles: value / 2 times the power. Behind the codes of a record 16 powers.
struct MXFP4 {
    using Coding = Looked<kE2M1Values, 5>;
    static constexpr bool kIntegerSpans = false;
    static constexpr size_t kSpan = 32, kFileBytes = 17, kHead = 0, kScales = 16, kParts = 1;
    static constexpr int kZero = 12;
    static constexpr bool kMinima = false;
    static void codes(const uint8_t* block, uint8_t* codes) { split_nibbles(block + 1, codes); }
    static void set_codes(uint8_t* block, const uint8_t* codes) { join_nibbles(block + 1, codes); }
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) { span[Coding::kBytes + row] = block[0]; }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) { block[0] = span[Coding::kBytes + row]; }
    static void floats(const uint8_t*, const uint8_t* scales, Vec* scale, Vec*) { scale[0] = load_e8m0_halved(scales); }
};

// d, 8 scales of 6 bits (upper two in 2 bytes, lower four in 4 bytes), 8 times 16 bytes of nibbles: d (s - 32) value. Packed: 16 d in front of
// a span; behind the codes of a record 16 scales as s - 32.
struct IQ4_XS {
    using Coding = IQ4Coding;
    static constexpr bool kIntegerSpans = false;
    static constexpr size_t kSpan = 256, kFileBytes = 136, kHead = 32, kScales = 16, kParts = 1, kRecord = Coding::kBytes + kScales;
    static constexpr int kZero = 128;
    static constexpr bool kMinima = false;
    static void codes(const uint8_t* block, uint8_t* codes) {
        for (size_t g = 0; g < 8; ++g) split_nibbles(block + 8 + 16 * g, codes + 32 * g);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t g = 0; g < 8; ++g) join_nibbles(block + 8 + 16 * g, codes + 32 * g);
    }
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        copy_half(span + 2 * row, block);
        uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t g = 0; g < 8; ++g) {
            const int s = (block[4 + g / 2] >> 4 * (g % 2) & 15) | (block[2 + g / 4] >> 2 * (g % 4) & 3) << 4;
            tail[g * kRecord] = static_cast<uint8_t>(s - 32);
        }
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        copy_half(block, span + 2 * row);
        memset(block + 2, 0, 6);
        const uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t g = 0; g < 8; ++g) {
            const unsigned s = (tail[g * kRecord] + 32u) & 63;
            block[4 + g / 2] = static_cast<uint8_t>(block[4 + g / 2] | (s & 15) << 4 * (g % 2));
            block[2 + g / 4] = static_cast<uint8_t>(block[2 + g / 4] | s >> 4 << 2 * (g % 4));
        }
    }
    static void floats(const uint8_t* head, const uint8_t* scales, Vec* scale, Vec*) { scale[0] = halves(head) * bytes(scales); }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
