// Formats with one scale and one offset for 32 inputs: Q4_1, Q5_1. What a format says stands in groups32.h.
#pragma once

#include "linear/groups32.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// d and m fp16 first in the file's block: q d + m. Behind the codes of a record 16 d, 16 m.
template <class Codings, size_t kBlockBytes>
struct AffineGroup {
    using Coding = Codings;
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

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
