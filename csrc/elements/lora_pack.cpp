// A number is a code times its span's scale, amax / 127; a span that is not finite has the scale NaN and codes of zero.
#include "elements/lora_pack.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <algorithm>

namespace ridgeline {

namespace {

constexpr size_t kRows = 16, kColumns = 4, kQuad = kRows * kColumns, kScales = kRows * sizeof(float);
constexpr int kZero = 128;               // of codes without a sign

size_t parts(size_t count, size_t size) { return (count + size - 1) / size; }

// The span of a rank: its scale, and by what its numbers become codes.
float scale_of(const float* numbers, size_t count, size_t across, float* inverse) {
    float most = 0.0f, test = 0.0f;
    for (size_t i = 0; i < count; ++i) {
        const float x = numbers[i * across];
        most = std::max(most, fabsf(x));
        test += x - x;                   // NaN where x is not finite
    }
    const float scale = most * (1.0f / 127.0f);
    *inverse = 1.0f / std::max(scale, FLT_MIN);
    return test == 0.0f ? scale : NAN;
}

uint8_t code_of(float x, float inverse) { return static_cast<uint8_t>(static_cast<int>(nearbyintf(x * inverse)) + kZero); }

}  // namespace

size_t packed_codes_bytes(size_t rank, size_t width, bool is_b) {
    const size_t scales = parts(rank, kRows) * parts(width, kCodeSpan) * kScales;
    return scales + kQuad * (is_b ? parts(width, kRows) * parts(rank, kColumns) : parts(rank, kRows) * parts(width, kColumns));
}

void pack_codes(const LowRank& m, bool is_b, uint8_t* packed) {
    const size_t blocks = parts(m.rank, kRows), rank_quads = parts(m.rank, kColumns);
    for (size_t first = 0; first < m.width; first += kCodeSpan) {
        const size_t here = std::min(kCodeSpan, m.width - first), quads = parts(here, kColumns);
        const size_t record = kScales + quads * kQuad;   // of A's blocks
        for (size_t r = 0; r < m.rank; ++r) {
            const float* numbers = m.numbers + r * m.down + first * m.across;
            float inverse;
            const float scale = scale_of(numbers, here, m.across, &inverse);
            uint8_t* block = is_b ? packed + r / kRows * kScales : packed + r / kRows * record;
            memcpy(block + r % kRows * sizeof scale, &scale, sizeof scale);
            uint8_t* codes = is_b ? packed + blocks * kScales + r / kColumns * kQuad + r % kColumns : block + kScales + r % kRows * kColumns;
            for (size_t i = 0; i < here; ++i) {
                const size_t place = is_b ? i / kRows * rank_quads * kQuad + i % kRows * kColumns : i / kColumns * kQuad + i % kColumns;
                codes[place] = scale == scale ? code_of(numbers[i * m.across], inverse) : kZero;
            }
        }
        packed += is_b ? blocks * kScales + parts(here, kRows) * rank_quads * kQuad : blocks * record;
    }
}

}  // namespace ridgeline
