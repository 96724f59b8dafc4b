// Changes by pairs whose matrices are codes of 8 bits: sums of integers, exact in any order, of activations that are quantised here.
//
// A span of columns of A, or of outputs of B, has a scale for each rank. What A makes takes B's scales and is quantised anew for each span.
#pragma once

#include <algorithm>

#include "elements/lora.h"
#include "elements/lora_pack.h"
#include "elements/quantise.h"
#include "runtime/ops.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr int kCodeBits = 8;

// Activations of a span: their codes, padded with zeros to a multiple of kCodeGroup, with one scale.
struct Span {
    alignas(kLine) int8_t codes[kCodeSpan];
    float scale;
    int32_t sum;

    void quantise(const float* x, size_t count) {
        alignas(kLine) float padded[kCodeSpan];
        float scales[kCodeSpan / kCodeGroup];
        int32_t sums[kCodeSpan / kLanes];
        const size_t group = (count + kCodeGroup - 1) / kCodeGroup * kCodeGroup;
        if (group > count) {
            std::copy(x, x + count, padded);
            std::fill(padded + count, padded + group, 0.0f);
            x = padded;
        }
        quantise_group(x, group, codes, scales, sums);
        scale = scales[0];
        sum = 0;
        for (size_t i = 0; i < group / kLanes; ++i) sum += sums[i];
    }
};

// dot [kTokens] = codes of 16 rows, in quads, times those of a span; `kParts` sums in turn wait for each other less. Returns what lies behind.
template <size_t kTokens, size_t kParts>
inline const uint8_t* dots_of(const uint8_t* at, size_t quads, const Span* of, Ints* dot) {
    Pairs sums[kTokens][kParts];
    for (size_t t = 0; t < kTokens; ++t)
        for (size_t j = 0; j < kParts; ++j) sums[t][j] = no_pairs();
    const auto add = [&](size_t q, size_t j) {
        const Quad weights = load_quad(at + q * kQuadBytes);
        RIDGELINE_UNROLL
        for (size_t t = 0; t < kTokens; ++t) sums[t][j] = products<kCodeBits>(sums[t][j], weights, of[t].codes + 4 * q);
    };
    size_t q = 0;
    for (; q + kParts <= quads; q += kParts) {
        fetch_ahead(at + q * kQuadBytes, kParts * kQuadBytes);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kParts; ++j) add(q + j, j);
    }
    for (size_t j = 0; q + j < quads; ++j) add(q + j, j);
    for (size_t t = 0; t < kTokens; ++t) {
        dot[t] = ints(kSigned<kCodeBits> ? 0 : -kCodeZero * of[t].sum);
        for (size_t j = 0; j < kParts; ++j) dot[t] = dot[t] + widen<kCodeBits>(sums[t][j]);
    }
    return at + quads * kQuadBytes;
}

// sums [kTokens][rank, padded to 16] = A . x
template <size_t kTokens>
inline void shrink_codes(const uint8_t* a, size_t rank, const float* x, size_t columns, float (*sums)[kMostRank]) {
    for (size_t t = 0; t < kTokens; ++t)
        for (size_t r = 0; r < rank; r += kLanes) store(sums[t] + r, zero());
    for (size_t from = 0; from < columns; from += kCodeSpan) {
        const size_t here = std::min(kCodeSpan, columns - from);
        Span of[kTokens];
        for (size_t t = 0; t < kTokens; ++t) of[t].quantise(x + t * columns + from, here);
        for (size_t r = 0; r < rank; r += kLanes) {
            const Vec scale = load(reinterpret_cast<const float*>(a));
            Ints dot[kTokens];
            a = dots_of<kTokens, kTokens == 1 ? 4 : 1>(a + kLine, (here + 3) / 4, of, dot);
            for (size_t t = 0; t < kTokens; ++t) store(sums[t] + r, fma(floats(dot[t]), scale * all(of[t].scale), load(sums[t] + r)));
        }
    }
}

// out = y + by * sums . b
template <size_t kTokens>
inline void expand_codes(const uint8_t* b, size_t rank, const float (*sums)[kMostRank], float by, const float* y, size_t width, float* out) {
    const size_t quads = (rank + 3) / 4;
    for (size_t from = 0; from < width; from += kCodeSpan) {
        Span of[kTokens];
        Vec scale[kTokens];
        for (size_t t = 0; t < kTokens; ++t) {
            float scaled[kMostRank];
            for (size_t r = 0; r < rank; r += kLanes) store(scaled + r, load(sums[t] + r) * load(reinterpret_cast<const float*>(b) + r));
            of[t].quantise(scaled, rank);
            scale[t] = all(by * of[t].scale);
        }
        b += (rank + kLanes - 1) / kLanes * kLine;
        for (size_t i = from; i < std::min(from + kCodeSpan, width); i += kLanes) {
            Ints dot[kTokens];
            b = dots_of<kTokens, 1>(b, quads, of, dot);
            for (size_t t = 0; t < kTokens; ++t) {
                const float* old = y + t * width + i;
                float* to = out + t * width + i;
                fetch_outputs(y + t * width, out + t * width, std::min(i + kOutputsAhead, width), std::min(i + kOutputsAhead + kLanes, width));
                const Vec change = floats(dot[t]) * scale[t];
                if (i + kLanes <= width) store(to, load(old) + change);
                else store_first(to, load_first(old, width - i) + change, width - i);
            }
        }
    }
}

// kTokens rows of one adapter, see LoraPair.
template <size_t kTokens>
void change_by_codes(const LoraPair& pair, const float* x, const float* y, size_t columns, size_t width, float* out) {
    float sums[kTokens][kMostRank];
    for (size_t t = 0; t < kTokens; ++t) fetch_outputs(y + t * width, out + t * width, 0, std::min(kOutputsAhead, width));
    shrink_codes<kTokens>(pair.a, pair.rank, x, columns, sums);
    expand_codes<kTokens>(pair.b, pair.rank, sums, pair.scale, y, width, out);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
