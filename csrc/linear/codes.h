// How codes of some bits lie in a packed record, and what follows from what a format says of itself.
//
// A quad is four consecutive inputs of sixteen rows. Codes are unsigned; what they mean is code - zero.
//
// A format says: how codes are coded in a record (Coding); kSpan inputs and kFileBytes bytes of a block in the file; kHead bytes in front of
// the records of a span and kScales bytes behind the codes of each; code - kZero is the weight's integer; kParts scales for a record's 32
// inputs; kMinima: minima beside them. Functions: `codes` of a file's block [kSpan] and back, `scales` of row r into a packed span and back,
// and `floats`: what a record's integers are multiplied by, [kParts] times 16 rows, and the minima that are taken off.
//
// Of formats of spans (kIntegerSpans) all inputs of a span are added up in integers. They also say: kScaleField (and kMinimumField), how a record holds integer scales of its parts; `scale` and `minimum`, what the
// integers of a span are multiplied by, from its head. Where kZerosOfRows, `zeros` are 16 integers that are taken off the codes of a span.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Bits `from` … of each byte moved to bits `to` …, under a mask.
inline Quad shifted(Quad w, unsigned from, unsigned to, char mask) { return from >= to ? shift_right(w, from - to, mask) : shift_left(w, to - from, mask); }

// Planes of bits, the parts of codes of one group of 32 inputs: how many bytes, how quad t is read, how all quads are written, how row r is
// read. A plane of b bits holds 8 / b quads in each 64 bytes, the first in the lowest bits: 64-byte piece t * b / 8, bits t * b % 8 ….
template <int kBits>
struct Plane {
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static constexpr uint8_t kMask = static_cast<uint8_t>((1u << kBits) - 1);

    // Quad t, shifted left by `lift`.
    static Quad quad(const uint8_t* plane, size_t t, unsigned lift = 0) {
        const Quad w = load_quad(plane + t * kBits / 8 * kQuadBytes);
        if (kBits == 8) return w;
        return shifted(w, static_cast<unsigned>(t * kBits % 8), lift, static_cast<char>(kMask << lift));
    }
    static void write(uint8_t* plane, const Quad* quads, unsigned lift = 0) {
        for (size_t piece = 0; piece < kBits; ++piece) {
            constexpr size_t kEach = 8 / kBits;
            Quad joined = quads[piece * kEach];
            for (size_t i = 0; i < kEach; ++i) {
                const Quad part = shifted(quads[piece * kEach + i], lift, static_cast<unsigned>(i * kBits), static_cast<char>(kMask << i * kBits));
                joined = i == 0 ? part : or_(joined, part);
            }
            store_quad(plane + piece * kQuadBytes, joined);
        }
    }
    // Onto codes, which begin as 0.
    static void read(const uint8_t* plane, size_t row, uint8_t* codes, unsigned lift = 0) {
        for (size_t t = 0; t < kGroupQuads; ++t) {
            const uint32_t part = (word(plane + t * kBits / 8 * kQuadBytes + 4 * row) >> (t * kBits % 8)) & kMask * 0x01010101u;
            set_word(codes + 4 * t, word(codes + 4 * t) | part << lift);
        }
    }
};

// Codes of some bits as one plane, or two: the lower bits first.
template <int kLow, int kHigh = 0>
struct Codings {
    static constexpr int kBits = kLow + kHigh;
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static int value(uint8_t code) { return code; }          // what `quad` gives for a stored code
    static Quad quad(const uint8_t* planes, size_t t) {
        return or_(Plane<kLow>::quad(planes, t), Plane<kHigh>::quad(planes + Plane<kLow>::kBytes, t, kLow));
    }
    static void write(uint8_t* planes, const Quad* quads) {
        Plane<kLow>::write(planes, quads);
        Plane<kHigh>::write(planes + Plane<kLow>::kBytes, quads, kLow);
    }
    static void read(const uint8_t* planes, size_t row, uint8_t* codes) {
        memset(codes, 0, 4 * kGroupQuads);
        Plane<kLow>::read(planes, row, codes);
        Plane<kHigh>::read(planes + Plane<kLow>::kBytes, row, codes, kLow);
    }
};
template <int kLow>
struct Codings<kLow, 0> {
    static constexpr int kBits = kLow;
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static int value(uint8_t code) { return code; }
    static Quad quad(const uint8_t* planes, size_t t) { return Plane<kLow>::quad(planes, t); }
    static void write(uint8_t* planes, const Quad* quads) { Plane<kLow>::write(planes, quads); }
    static void read(const uint8_t* planes, size_t row, uint8_t* codes) {
        memset(codes, 0, 4 * kGroupQuads);
        Plane<kLow>::read(planes, row, codes);
    }
};

// Codes of 5 or 6 bits, most of them in bytes of their own, which one operation reads: 64-byte piece t < kBits has quad t in its lower bits and a
// field of the rest above; the fields of some pieces together are the other quads. Of 5 bits piece 4 holds four fields of two bits instead.
template <int kCodeBits>
struct OwnBytes {
    static constexpr int kBits = kCodeBits;
    static constexpr size_t kBytes = kQuadBytes * kBits;
    static constexpr char kMask = (1 << kBits) - 1;
    static int value(uint8_t code) { return code; }
    static Quad field(const uint8_t* planes, size_t piece, unsigned from, unsigned to, int mask) {
        return shifted(load_quad(planes + piece * kQuadBytes), from, to, static_cast<char>(mask << to));
    }
    static Quad quad(const uint8_t* planes, size_t t) {
        if (kBits == 5) {
            if (t < 4) return field(planes, t, 0, 0, 31);
            return or_(field(planes, t - 4, 5, 0, 7), field(planes, 4, 2 * static_cast<unsigned>(t - 4), 3, 3));
        }
        if (t < 6) return field(planes, t, 0, 0, 63);
        const size_t first = 3 * (t - 6);
        return or_(or_(field(planes, first, 6, 0, 3), field(planes, first + 1, 6, 2, 3)), field(planes, first + 2, 6, 4, 3));
    }
    static void write(uint8_t* planes, const Quad* quads) {
        Quad own[kBits];
        if (kBits == 5) {
            for (size_t t = 0; t < 4; ++t) own[t] = or_(quads[t], shifted(quads[t + 4], 0, 5, static_cast<char>(7 << 5)));
            own[4] = shifted(quads[4], 3, 0, 3);
            for (unsigned t = 1; t < 4; ++t) own[4] = or_(own[4], shifted(quads[4 + t], 3, 2 * t, static_cast<char>(3 << 2 * t)));
        } else {
            for (unsigned t = 0; t < 6; ++t) own[t] = or_(quads[t], shifted(quads[6 + t / 3], 2 * (t % 3), 6, static_cast<char>(3 << 6)));
        }
        for (size_t t = 0; t < kBits; ++t) store_quad(planes + t * kQuadBytes, own[t]);
    }
    static void read(const uint8_t* planes, size_t row, uint8_t* codes) {
        for (size_t t = 0; t < kGroupQuads; ++t) {
            uint8_t bytes[kQuadBytes];
            store_quad(bytes, quad(planes, t));
            memcpy(codes + 4 * t, bytes + 4 * row, 4);
        }
    }
};

// Codes of four bits, or two, that choose a value of a table; values take kValueBits bits. Records hold the codes.
template <const uint8_t* kTable, int kValueBits, int kCodeBits = 4>
struct Looked : Codings<kCodeBits> {
    static constexpr int kBits = kValueBits;
    static int value(uint8_t code) { return kTable[code]; }
    static Quad quad(const uint8_t* planes, size_t t) { return look_up(Codings<kCodeBits>::quad(planes, t), kTable); }
};

template <class F>
constexpr size_t kRecordBytes = F::Coding::kBytes + F::kScales;
template <class F>
constexpr size_t kSpanBytes = F::kHead + F::kSpan / kCodeGroup * kRecordBytes<F>;

// Whether what a format calls minima are zeros: integers of each row, off its codes before they are scaled. All of it is exact.
template <class F>
constexpr bool kZerosOfRows = false;

// Whether outputs are those of a screen: what is taken off their sums are offsets in place of sums (screen/bounds.cpp).
template <class F>
constexpr bool kScreens = false;

// Bytes of a packed block of 16 rows.
template <class F>
size_t block_bytes(size_t k) { return k / F::kSpan * kSpanBytes<F>; }

inline void copy_half(uint8_t* to, const uint8_t* from) { memcpy(to, from, 2); }
inline Vec halves(const uint8_t* p) { return load_half(p); }
inline Vec bytes(const uint8_t* p) {
    int8_t b[kLanes];
    memcpy(b, p, sizeof b);
    return load_int8(b);
}

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

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
