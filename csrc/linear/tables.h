// Formats whose codes of four bits choose one of sixteen unevenly spaced values: IQ4_NL, IQ4_XS. What a format says stands in groups32.h.
#pragma once

#include "linear/groups32.h"
#include "linear/k_quants.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// The table's values -127 … 113, + 128. Records hold the file's codes; what is multiplied are 8 bits.
constexpr uint8_t kIQ4Values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

struct IQ4Coding : Codings<4> {
    static constexpr int kBits = 8;
    static int value(uint8_t code) { return kIQ4Values[code]; }
    static Quad quad(const uint8_t* planes, size_t t) { return look_up(Codings<4>::quad(planes, t), kIQ4Values); }
};

// d, 32 nibbles: d value.
struct IQ4_NL : ScaledGroup<IQ4Coding, 128, 18> {
    static void codes(const uint8_t* block, uint8_t* codes) { split_nibbles(block + 2, codes); }
    static void set_codes(uint8_t* block, const uint8_t* codes) { join_nibbles(block + 2, codes); }
};

// d, 8 scales of 6 bits (upper two in 2 bytes, lower four in 4 bytes), 8 times 16 bytes of nibbles: d (s - 32) value. Packed: 16 d in front of
// a span; behind the codes of a record 16 scales as s - 32.
struct IQ4_XS {
    using Coding = IQ4Coding;
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
