// Superblocks of 256 inputs whose codes choose values of a small table: ternary weights, IQ1, IQ2, IQ3. What a format says stands in linear/codes.h.
//
// Packing takes records of 146 bytes, into which compute/quant/small.py brings all of them: d fp16, 16 signed factors, then for every 32 inputs 16
// bytes of nibbles. The weight is d unit factor value.
#include "linear/family.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Values + kZero, and what d is multiplied by.
struct Ternary {
    static constexpr uint8_t kValues[16] = {0, 1, 2, 3};
    static constexpr int kZero = 1, kCodeBits = 2, kValueBits = 2;
    static constexpr float kUnit = 1.0f;
};
struct Eighths {
    static constexpr uint8_t kValues[16] = {0, 2, 8, 10, 16, 18};
    static constexpr int kZero = 9, kCodeBits = 4, kValueBits = 5;
    static constexpr float kUnit = 0.125f;
};
struct Three {
    static constexpr uint8_t kValues[16] = {0, 18, 35, 51, 68, 86};
    static constexpr int kZero = 43, kCodeBits = 4, kValueBits = 7;
    static constexpr float kUnit = 0.125f;
};
struct Eight {
    static constexpr uint8_t kValues[16] = {0, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 62};
    static constexpr int kZero = 31, kCodeBits = 4, kValueBits = 6;
    static constexpr float kUnit = 0.5f;
};
struct EightEven {
    static constexpr uint8_t kValues[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    static constexpr int kZero = 15, kCodeBits = 4, kValueBits = 5;
    static constexpr float kUnit = 1.0f;
};

// 16 d in front of a span; behind the codes of a record the factors of its first half, 16 rows, and of its second.
template <class Values>
struct Tabled {
    using Coding = Looked<Values::kValues, Values::kValueBits, Values::kCodeBits>;
    static constexpr bool kIntegerSpans = true;
    static constexpr size_t kSpan = 256, kFileBytes = 146, kHead = 32, kScales = 32, kParts = 2, kRecord = Coding::kBytes + kScales;
    static constexpr int kZero = Values::kZero;
    static constexpr bool kMinima = false;
    static constexpr Field kScaleField = Field::kSigned;
    static void codes(const uint8_t* block, uint8_t* codes) {
        for (size_t g = 0; g < 8; ++g) split_nibbles(block + 18 + 16 * g, codes + 32 * g);
    }
    static void set_codes(uint8_t* block, const uint8_t* codes) {
        for (size_t g = 0; g < 8; ++g) join_nibbles(block + 18 + 16 * g, codes + 32 * g);
    }
    static void pack_scales(const uint8_t* block, uint8_t* span, size_t row) {
        copy_half(span + 2 * row, block);
        uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) tail[j / 2 * kRecord + j % 2 * 16] = block[2 + j];
    }
    static void unpack_scales(uint8_t* block, const uint8_t* span, size_t row) {
        copy_half(block, span + 2 * row);
        const uint8_t* tail = span + kHead + Coding::kBytes + row;
        for (size_t j = 0; j < 16; ++j) block[2 + j] = tail[j / 2 * kRecord + j % 2 * 16];
    }
    static Vec scale(const uint8_t* head) { return halves(head) * all(Values::kUnit); }
    static void floats(const uint8_t* head, const uint8_t* scales, Vec* scales_of, Vec*) {
        const Vec d = scale(head);
        scales_of[0] = d * bytes(scales), scales_of[1] = d * bytes(scales + 16);
    }
};

}  // namespace

const FamilyKernels kTables =
    Family<Member<kTQ1_0, Tabled<Ternary>>, Member<kTQ2_0, Tabled<Ternary>>, Member<kIQ1_S, Tabled<Eighths>>, Member<kIQ1_M, Tabled<Eighths>>,
           Member<kIQ2_XXS, Tabled<Three>>, Member<kIQ2_XS, Tabled<Three>>, Member<kIQ2_S, Tabled<Three>>, Member<kIQ3_XXS, Tabled<Eight>>,
           Member<kIQ3_S, Tabled<EightEven>>>::kernels();

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
