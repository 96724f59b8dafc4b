// A number is a code times its span's scale, amax / 127; a span that is not finite has the scale NaN and codes of zero.
#include "elements/lora_pack.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <algorithm>

namespace ridgeline {

namespace {

constexpr size_t kRows = 16, kColumns = 4, kQuad = kRows * kColumns, kScales = kRows * sizeof(float);

size_t parts(size_t count, size_t size) { return (count + size - 1) / size; }

// The codes of a rank's span, `across` apart, and its scale. Loops over 16 numbers in turn become vectors.
float code(const float* numbers, size_t count, size_t across, uint8_t* codes) {
    float x[kCodeSpan] = {}, most[kRows] = {}, test[kRows] = {}, amax = 0.0f, tests = 0.0f;
    for (size_t i = 0; i < count; ++i) x[i] = numbers[i * across];
    for (size_t i = 0; i < kCodeSpan; i += kRows)
        for (size_t j = 0; j < kRows; ++j) {
            const float size = fabsf(x[i + j]);
            most[j] = most[j] > size ? most[j] : size;
            test[j] += x[i + j] - x[i + j];              // NaN where it is not finite
        }
    for (size_t j = 0; j < kRows; ++j) amax = std::max(amax, most[j]), tests += test[j];
    const bool finite = tests == 0.0f;
    const float scale = amax * (1.0f / 127.0f), inverse = 1.0f / std::max(scale, FLT_MIN);
    for (size_t i = 0; i < kCodeSpan; ++i) codes[i] = static_cast<uint8_t>(static_cast<int>(rintf(finite ? x[i] * inverse : 0.0f)) + kCodeZero);
    return finite ? scale : NAN;
}

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
            uint8_t codes[kCodeSpan];
            const float scale = code(m.numbers + r * m.down + first * m.across, here, m.across, codes);
            uint8_t* block = is_b ? packed + r / kRows * kScales : packed + r / kRows * record;
            memcpy(block + r % kRows * sizeof scale, &scale, sizeof scale);
            if (is_b) {
                uint8_t* to = packed + blocks * kScales + r / kColumns * kQuad + r % kColumns;
                for (size_t i = 0; i < here; ++i) to[i / kRows * rank_quads * kQuad + i % kRows * kColumns] = codes[i];
            } else {
                for (size_t q = 0; q < quads; ++q) memcpy(block + kScales + q * kQuad + r % kRows * kColumns, codes + q * kColumns, kColumns);
            }
        }
        packed += is_b ? blocks * kScales + parts(here, kRows) * rank_quads * kQuad : blocks * record;
    }
}

}  // namespace ridgeline
