// The upper 5 of 8 bits, a group of 16 rows and 32 inputs at a time.
//
// Eight quads of 5 bits take five pieces of 64 bytes: piece i < 5 has quad i in its upper 5 bits; what is left holds the lower 3 bits of quads 5, 6
// and 7 (pieces 0, 1, 2), the upper 2 of quads 5 and 6 (pieces 3, 4), and those of quad 7, one each (pieces 3, 4). So most quads take one
// operation or two to read.
#pragma once

#include "linear/groups32.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

inline Quad piece(const uint8_t* pieces, size_t i) { return load_quad(pieces + i * kQuadBytes); }
inline Quad bits(Quad w, unsigned from, unsigned to, unsigned mask) { return shifted(w, from, to, static_cast<char>(mask)); }

struct HighCodes {
    static constexpr int kBits = 5;
    static constexpr size_t kBytes = kBits * kQuadBytes;

    static Quad quad(const uint8_t* p, size_t t) {
        if (t < 5) return bits(piece(p, t), 3, 0, 0x1f);
        const Quad lower = bits(piece(p, t - 5), 0, 0, 7);
        if (t < 7) return either(lower, bits(piece(p, t - 2), 0, 3, 0x18));
        return either(lower, either(bits(piece(p, 3), 2, 3, 8), bits(piece(p, 4), 2, 4, 0x10)));
    }

    // Bits 3 … 7 of whole codes [8].
    static void write(uint8_t* p, const Quad* whole) {
        for (size_t i = 0; i < 3; ++i) store_quad(p + i * kQuadBytes, either(bits(whole[i], 0, 0, 0xf8), bits(whole[5 + i], 3, 0, 7)));
        for (size_t i = 3; i < 5; ++i) {
            const unsigned last = static_cast<unsigned>(i) + 3;
            const Quad upper = either(bits(whole[2 + i], 6, 0, 3), bits(whole[7], last, 2, 4));
            store_quad(p + i * kQuadBytes, either(bits(whole[i], 0, 0, 0xf8), upper));
        }
    }
};

constexpr size_t kHighBytes = HighCodes::kBytes + 32;    // of a group: codes, 16 scales

// What the screen reads of a record of Q8_0.
inline void write_high(const uint8_t* record, uint8_t* high) {
    Quad whole[kGroupQuads];
    for (size_t t = 0; t < kGroupQuads; ++t) whole[t] = load_quad(record + t * kQuadBytes);
    HighCodes::write(high, whole);
    memcpy(high + HighCodes::kBytes, record + Q8_0::Coding::kBytes, Q8_0::kScales);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
