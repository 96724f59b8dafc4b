// Writing keys and values into the paged cache: copied, rounded to bf16, or quantised with one scale per head.
#include <float.h>

#include "runtime/rows.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// Below this a head is zero: 127 / amax would overflow.
constexpr float kTiny = 1e-36f;

// To nearest, ties to even; NaN stays NaN.
void round_head(const float* x, size_t width, uint8_t* to) {
    for (size_t i = 0; i < width; ++i) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
        const uint16_t half = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
        memcpy(to + 2 * i, &half, 2);
    }
}

// Codes, then their scale amax / 127. A head with a value that is not finite gets the scale NaN and codes 0.
void quantise_head(const float* x, size_t width, uint8_t* to) {
    float amax = 0.0f;
    bool finite = true;
    for (size_t i = 0; i < width; ++i) {
        const float size = fabsf(x[i]);
        finite &= size <= FLT_MAX;
        amax = size > amax ? size : amax;
    }
    const bool live = finite && amax >= kTiny;
    const float inverse = live ? 127.0f / amax : 0.0f, scale = live ? amax / 127.0f : finite ? 0.0f : NAN;
    for (size_t i = 0; i < width; ++i) to[i] = static_cast<uint8_t>(live ? static_cast<int8_t>(nearbyintf(x[i] * inverse)) : 0);
    memcpy(to + width, &scale, 4);
}

void write_head(int type, const float* x, size_t width, uint8_t* to) {
    switch (type) {
        case kKVF32: memcpy(to, x, width * sizeof(float)); return;
        case kKVBF16: return round_head(x, width, to);
        default: return quantise_head(x, width, to);
    }
}

}  // namespace

void kv_write(const KVWrite& op, const Step& step, size_t row) {
    const KVLayer& cache = op.cache;
    const size_t slot = static_cast<size_t>(step.slots[op.kv_group][row]), width = cache.head_dim;
    const size_t place = slot / cache.block_tokens * cache.block_bytes + slot % cache.block_tokens * cache.record_bytes;
    for (size_t head = 0; head < cache.kv_heads; ++head) {
        const size_t from = (row * cache.kv_heads + head) * width, to = place + head * cache.head_bytes;
        write_head(cache.type, op.k + from, width, cache.keys + to);
        if (cache.values != cache.keys) write_head(cache.type, op.v + from, width, cache.values + to);
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
