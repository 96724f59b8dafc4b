// Superblocks of 256 inputs whose groups have integer scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K. What a format says stands in linear/codes.h.
#include "linear/family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

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
    static constexpr bool kIntegerSpans = true;
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
    static constexpr bool kIntegerSpans = true;
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

// Fields of `width` bits: of each 32 bytes the lowest fields are 32 codes, then the next ones.
inline void split_fields(const uint8_t* __restrict bytes, size_t width, size_t lift, uint8_t* __restrict codes) {
    const uint8_t mask = static_cast<uint8_t>((1u << width) - 1);
    for (size_t j = 0; j < 8 / width; ++j)
        for (size_t i = 0; i < 32; ++i) codes[32 * j + i] = static_cast<uint8_t>(codes[32 * j + i] | ((bytes[i] >> width * j) & mask) << lift);
}
inline void join_fields(uint8_t* __restrict bytes, size_t width, size_t lift, const uint8_t* __restrict codes) {
    const uint8_t mask = static_cast<uint8_t>((1u << width) - 1);
    memset(bytes, 0, 32);
    for (size_t j = 0; j < 8 / width; ++j)
        for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(bytes[i] | (codes[32 * j + i] >> lift & mask) << width * j);
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of a byte belongs to group j.
struct Q5_K : AffineSuperblock<OwnBytes<5>, 176> {
    static void codes(const uint8_t* block, uint8_t* codes) {
        for (size_t c = 0; c < 4; ++c) split_nibbles(block + 48 + 32 * c, codes + 64 * c, 32);
        split_fields(block + 16, 1, 4, codes);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t c = 0; c < 4; ++c) join_nibbles(block + 48 + 32 * c, codes + 64 * c, 32);
        join_fields(block + 16, 1, 4, codes);
    }
};

// 16 bytes of a scale (low) and a minimum (high) for 16 inputs, 64 bytes of codes, d, dmin: q d s - dmin m. Packed: 16 d, 16 dmin in front of a
// span; behind the codes of a record the file's bytes for its first half, 16 rows, and for its second.
struct Q2_K {
    using Coding = Codings<2>;
    static constexpr bool kIntegerSpans = true;
    static constexpr size_t kSpan = 256, kFileBytes = 84, kHead = 64, kScales = 32, kParts = 2, kRecord = Coding::kBytes + kScales;
    static constexpr int kZero = 0;
    static constexpr bool kMinima = true;
    static constexpr Field kScaleField = Field::kLow, kMinimumField = Field::kHigh;
    static void codes(const uint8_t* block, uint8_t* codes) {
        memset(codes, 0, kSpan);
        for (size_t half = 0; half < 2; ++half) split_fields(block + 16 + 32 * half, 2, 0, codes + 128 * half);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t half = 0; half < 2; ++half) join_fields(block + 16 + 32 * half, 2, 0, codes + 128 * half);
    }
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        copy_half(span + 2 * row, block + 80);
        copy_half(span + 32 + 2 * row, block + 82);
        uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) tail[j / 2 * kRecord + j % 2 * 16] = block[j];
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        copy_half(block + 80, span + 2 * row);
        copy_half(block + 82, span + 32 + 2 * row);
        const uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) block[j] = tail[j / 2 * kRecord + j % 2 * 16];
    }
    static void floats(const uint8_t* head, const uint8_t* scales, Vec* scale, Vec* minimum) {
        uint8_t low[32], high[32];
        for (size_t i = 0; i < 32; ++i) low[i] = scales[i] & 15;
        for (size_t i = 0; i < 32; ++i) high[i] = scales[i] >> 4;
        const Vec d = halves(head), dmin = halves(head + 32);
        for (size_t part = 0; part < 2; ++part) scale[part] = d * bytes(low + 16 * part), minimum[part] = dmin * bytes(high + 16 * part);
    }
    static Vec scale(const uint8_t* head) { return halves(head); }
    static Vec minimum(const uint8_t* head) { return halves(head + 32); }
};

// 32 bytes of third bits, 64 of lower two bits, 16 scales of 6 bits in 12 bytes, d: (q - 4) d (s - 32). Packed as Q6_K, scales as s - 32.
struct Q3_K {
    using Coding = Codings<2, 1>;
    static constexpr bool kIntegerSpans = true;
    static constexpr size_t kSpan = 256, kFileBytes = 110, kHead = 32, kScales = 32, kParts = 2, kRecord = Coding::kBytes + kScales;
    static constexpr int kZero = 4;
    static constexpr bool kMinima = false;
    static constexpr Field kScaleField = Field::kSigned;
    static void codes(const uint8_t* block, uint8_t* codes) {
        memset(codes, 0, kSpan);
        for (size_t half = 0; half < 2; ++half) split_fields(block + 32 + 32 * half, 2, 0, codes + 128 * half);
        split_fields(block, 1, 2, codes);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t half = 0; half < 2; ++half) join_fields(block + 32 + 32 * half, 2, 0, codes + 128 * half);
        join_fields(block, 1, 2, codes);
    }
    // Lower four bits of scale j: half a byte of the first eight; upper two: a field of the other four.
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        const uint8_t* packed = block + 96;
        copy_half(span + 2 * row, block + 108);
        uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) {
            const int s = (packed[j % 8] >> 4 * (j / 8) & 15) | (packed[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
            tail[j / 2 * kRecord + j % 2 * 16] = static_cast<uint8_t>(s - 32);
        }
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        uint8_t* packed = block + 96;
        copy_half(block + 108, span + 2 * row);
        memset(packed, 0, 12);
        const uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) {
            const unsigned s = (tail[j / 2 * kRecord + j % 2 * 16] + 32u) & 63;
            packed[j % 8] = static_cast<uint8_t>(packed[j % 8] | (s & 15) << 4 * (j / 8));
            packed[8 + j % 4] = static_cast<uint8_t>(packed[8 + j % 4] | s >> 4 << 2 * (j / 4));
        }
    }
    static void floats(const uint8_t* head, const uint8_t* scales, Vec* scale, Vec*) {
        const Vec d = halves(head);
        scale[0] = d * bytes(scales), scale[1] = d * bytes(scales + 16);
    }
    static Vec scale(const uint8_t* head) { return halves(head); }
};

using KQuants = Family<Member<kQ2_K, Q2_K>, Member<kQ3_K, Q3_K>, Member<kQ4_K, Q4_K>, Member<kQ5_K, Q5_K>, Member<kQ6_K, Q6_K>>;

}  // namespace

const FamilyKernels kKQuants = KQuants::kernels();

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
