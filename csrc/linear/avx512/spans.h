// Products of many tokens with formats of spans: a block of 16 rows is expanded once to bytes, integer factors and fp32 scales, then tiles of
// tokens meet it there, whose accumulators stay in registers. Scratch of a call is the expanded block.
#pragma once

#include "linear/avx512/groups.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Of one format: places in an expanded span. Records: quads, then factors of their parts. Behind them twins, scale, minimum, zeros.
template <class F>
struct SpanPlaces {
    static constexpr bool kBeside = kSpanMinima<F> || kCentredParts<F>;
    static constexpr size_t kGroup = (kGroupQuads + (kScaled<F> ? F::kParts : 0)) * kQuadBytes;
    static constexpr size_t kTwins = kSpanGroups<F> * kGroup;
    static constexpr size_t kScale = kTwins + (kBeside ? kSpanParts<F> * kQuadBytes : 0);
    static constexpr size_t kSpan = kScale + (1 + (kSpanMinima<F> || kZerosOfRows<F>)) * kQuadBytes;
};

inline void store_ints(uint8_t* to, Ints x) { _mm512_storeu_si512(to, x.v); }
inline Ints load_ints(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }

template <class F>
void expand_spans(const uint8_t* head, size_t spans, uint8_t* to) {
    using P = SpanPlaces<F>;
    for (size_t span = 0; span < spans; ++span, head += kSpanBytes<F>, to += P::kSpan) {
        const uint8_t* record = head + F::kHead;
        for (size_t g = 0; g < kSpanGroups<F>; ++g) {
            const uint8_t* from = record + g * kRecordBytes<F>;
            uint8_t* group = to + g * P::kGroup;
            prefetch_record<kRecordBytes<F>, 1>(from);
            RIDGELINE_UNROLL
            for (size_t t = 0; t < kGroupQuads; ++t) store_quad(group + t * kQuadBytes, F::Coding::quad(from, t));
            if constexpr (kScaled<F>)
                for (size_t part = 0; part < F::kParts; ++part)
                    store_ints(group + (kGroupQuads + part) * kQuadBytes, factors<F::kScaleField>(from + F::Coding::kBytes + part * kBlockRows));
        }
        if constexpr (P::kBeside)
            for (size_t pair = 0; pair < kSpanParts<F> / 2; ++pair) {
                const Twins two = twins_of<F>(record, pair);
                store_ints(to + P::kTwins + 2 * pair * kQuadBytes, two.first);
                store_ints(to + P::kTwins + (2 * pair + 1) * kQuadBytes, two.second);
            }
        store(reinterpret_cast<float*>(to + P::kScale), F::scale(head));
        if constexpr (kSpanMinima<F>) store(reinterpret_cast<float*>(to + P::kScale + kQuadBytes), F::minimum(head));
        if constexpr (kZerosOfRows<F>) store_ints(to + P::kScale + kQuadBytes, F::zeros(head) + ints(kSigned<F::Coding::kBits> ? 0 : F::kZero));
    }
}

// Sums [M, 16] of an expanded block. F stands for all formats of the same parts, fields and minima.
template <class F, size_t M>
void sum_spans(const uint8_t* span, const Tokens& x, float* sums) {
    using P = SpanPlaces<F>;
    Vec acc[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    for (size_t group = 0; group < x.groups; group += kSpanGroups<F>, span += P::kSpan) {
        const int8_t* codes = x.codes + group * kCodeGroup;
        Ints dot[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            dot[i] = ints(0);
            if constexpr (kZerosOfRows<F>) dot[i] = load_ints(span + P::kScale + kQuadBytes) * ints(-total<F>(x.sums + (i * x.groups + group) * 2));
        }
#pragma GCC unroll 1
        for (size_t g = 0; g < kSpanGroups<F>; ++g) {
            const uint8_t* quads = span + g * P::kGroup;
            if constexpr (!kScaled<F>) {
                add_quads<M>(quads, kGroupQuads, codes + g * kCodeGroup, x.stride, dot);
                continue;
            }
            constexpr size_t kQuads = kGroupQuads / F::kParts;
#pragma GCC unroll 1
            for (size_t part = 0; part < F::kParts; ++part) {
                Ints pairs[M];
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) pairs[i] = ints(0);
                add_quads<M>(quads + part * kQuads * kQuadBytes, kQuads, codes + g * kCodeGroup + 4 * part * kQuads, x.stride, pairs);
                const Ints by = load_ints(quads + (kGroupQuads + part) * kQuadBytes);
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) dot[i] = dot[i] + widened(pairs[i], by);
            }
        }
        Ints beside[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) beside[i] = ints(0);
        if constexpr (P::kBeside) {
#pragma GCC unroll 1
            for (size_t part = 0; part < kSpanParts<F>; ++part) {
                const Ints by = load_ints(span + P::kTwins + part * kQuadBytes);
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) {
                    const int32_t* s = x.sums + (i * x.groups + group) * 2;
                    beside[i] = beside[i] + by * ints(F::kParts == 2 ? s[part] : s[2 * part] + s[2 * part + 1]);
                }
            }
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const float x_scale = x.scales[i * x.groups + group];
            if constexpr (kCentredParts<F>) dot[i] = dot[i] - beside[i] * ints(F::kZero);
            acc[i] = add_span(acc[i], dot[i], load(reinterpret_cast<const float*>(span + P::kScale)), x_scale);
            if constexpr (kSpanMinima<F>) acc[i] = add_minima(acc[i], beside[i], load(reinterpret_cast<const float*>(span + P::kScale + kQuadBytes)), x_scale);
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) store(sums + i * kLanes, acc[i]);
}
template <class F, size_t M = kMostTileTokens>
void sum_spans_of(size_t m, const uint8_t* span, const Tokens& x, float* sums) {
    if constexpr (M > kLeastTileTokens)
        if (m < M) return sum_spans_of<F, M - 1>(m, span, x, sums);
    sum_spans<F, M>(span, x, sums);
}

// As multiply_tiled, of formats of spans: put(block, first token, tokens, sums).
template <class F, class Put>
bool sum_spans_tiled(const uint8_t* data, size_t bytes, size_t count, const Tokens& x, size_t m, uint8_t* scratch, const Put& put) {
    const size_t spans = x.groups / kSpanGroups<F>;
    if (m < kLeastTileTokens || spans * SpanPlaces<F>::kSpan > kLinearScratch) return false;
    float sums[kMostTileTokens * kLanes];
    for (size_t block = 0; block < count; ++block) {
        expand_spans<F>(data + block * bytes, spans, scratch);
        each_tile(m, [&](size_t from, size_t here) {
            sum_spans_of<F>(here, scratch, tokens_from(x, from), sums);
            put(block, from, here, sums);
        });
    }
    return true;
}

template <class F>
bool multiply_tiled(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    const size_t bytes = block_bytes<F>(matrix.k);
    const uint8_t* data = matrix.data + first * bytes;
    const auto put = [&](size_t block, size_t from, size_t here, const float* sums) {
        const size_t columns = columns_of(matrix, first + block);
        for (size_t i = 0; i < here; ++i) write(load(sums + i * kLanes), to.out + (from + i) * to.stride + (first + block) * kBlockRows, columns);
    };
    if constexpr (F::kIntegerSpans) return sum_spans_tiled<F>(data, bytes, count, tokens(x, matrix.k, 0), m, scratch, put);
    else return sum_tiled<F>(data, bytes, count, tokens(x, matrix.k, 0), m, scratch, put);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
