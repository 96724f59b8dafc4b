// Codes of 8 bits cut in 5 and 3, a group of 16 rows and 32 inputs at a time: how the parts are written, read one by one, and joined.
//
// Eight quads of 5 bits take five pieces of 64 bytes: piece i < 5 has quad i in its upper 5 bits; what is left holds the lower 3 bits of quads 5, 6
// and 7 (pieces 0, 1, 2), the upper 2 of quads 5 and 6 (pieces 3, 4), and those of quad 7, one each (pieces 3, 4). Eight quads of 3 bits take
// three pieces: quads 0, 1, 2 in the lowest 3 bits, quads 3, 4, 5 in the next, and above them quad 6 (two bits of piece 0, one of piece 1) and
// quad 7 (two bits of piece 2, one of piece 1). So most quads take one operation or two to read, be it alone or into their place in 8 bits.
#pragma once

#include "linear_groups32.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

inline Quad piece(const uint8_t* pieces, size_t i) { return load_quad(pieces + i * kQuadBytes); }
inline Quad bits(Quad w, unsigned from, unsigned to, unsigned mask) { return shifted(w, from, to, static_cast<char>(mask)); }

// The upper 5 bits.
struct HighCodes {
    static constexpr int kBits = 5;
    static constexpr size_t kBytes = kBits * kQuadBytes;

    // Quad t, its lowest bit at bit `at`: 0 or 3.
    static Quad quad_at(const uint8_t* p, size_t t, unsigned at) {
        if (t < 5) return bits(piece(p, t), 3, at, 0x1fu << at);
        const Quad lower = bits(piece(p, t - 5), 0, at, 7u << at);
        if (t < 7) return either(lower, bits(piece(p, t - 2), 0, at + 3, 3u << (at + 3)));
        return either(lower, either(bits(piece(p, 3), 2, at + 3, 1u << (at + 3)), bits(piece(p, 4), 2, at + 4, 1u << (at + 4))));
    }
    static Quad quad(const uint8_t* p, size_t t) { return quad_at(p, t, 0); }

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

// The lower 3 bits.
struct LowCodes {
    static constexpr int kBits = 3;
    static constexpr size_t kBytes = kBits * kQuadBytes;

    static Quad quad(const uint8_t* p, size_t t) {
        if (t < 6) return bits(piece(p, t % 3), t < 3 ? 0 : 3, 0, 7);
        return either(bits(piece(p, t == 6 ? 0 : 2), 6, 0, 3), bits(piece(p, 1), static_cast<unsigned>(t), 2, 4));
    }
    static void write(uint8_t* p, const Quad* whole) {
        for (size_t i = 0; i < 3; ++i) {
            const Quad two = either(bits(whole[i], 0, 0, 7), bits(whole[3 + i], 0, 3, 0x38));
            const Quad rest = i == 1 ? either(bits(whole[6], 2, 6, 0x40), bits(whole[7], 2, 7, 0x80)) : bits(whole[i == 0 ? 6 : 7], 0, 6, 0xc0);
            store_quad(p + i * kQuadBytes, either(two, rest));
        }
    }
};

constexpr size_t kHighBytes = HighCodes::kBytes + 32;    // of a group: codes, 16 scales
constexpr size_t kLowBytes = LowCodes::kBytes;

// Quad t of whole codes.
inline Quad whole_quad(const uint8_t* high, const uint8_t* low, size_t t) { return either(HighCodes::quad_at(high, t, 3), LowCodes::quad(low, t)); }

// A group as a record of Q8_0, and back.
inline void join_record(const uint8_t* high, const uint8_t* low, uint8_t* record) {
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads; ++t) store_quad(record + t * kQuadBytes, whole_quad(high, low, t));
    memcpy(record + Q8_0::Coding::kBytes, high + HighCodes::kBytes, Q8_0::kScales);
}

inline void cut_record(const uint8_t* record, uint8_t* high, uint8_t* low) {
    Quad whole[kGroupQuads];
    for (size_t t = 0; t < kGroupQuads; ++t) whole[t] = load_quad(record + t * kQuadBytes);
    HighCodes::write(high, whole);
    LowCodes::write(low, whole);
    memcpy(high + HighCodes::kBytes, record + Q8_0::Coding::kBytes, Q8_0::kScales);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
