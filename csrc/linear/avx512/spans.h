// Products of many tokens with formats of spans: a block of 16 rows is expanded once to bytes, integer factors and fp32 scales, then tiles of
// tokens meet it there, whose accumulators stay in registers. Scratch of a call is the expanded block.
#pragma once

#include "linear/avx512/groups.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// What is beside the integers of a span: zeros of rows, which are in front of them; minima; or parts with a centre.
enum class Beside { kZeros, kMinima, kCentre };

// Places in an expanded span: records are quads, then factors of their parts if there are several scales; behind them twins, scale, minimum or
// zeros. All formats with the same places share the code of tiles.
template <size_t kSpanGroupCount, size_t kPartCount, Beside kWhat>
struct Places {
    static constexpr size_t kGroups = kSpanGroupCount, kParts = kPartCount;
    static constexpr Beside kBeside = kWhat;
    static constexpr bool kTwinned = kWhat != Beside::kZeros;            // and has factors
    static constexpr size_t kGroup = (kGroupQuads + (kTwinned ? kParts : 0)) * kQuadBytes;
    static constexpr size_t kTwins = kGroups * kGroup;
    static constexpr size_t kScale = kTwins + (kTwinned ? kGroups * kParts * kQuadBytes : 0);
    static constexpr size_t kSpan = kScale + (1 + (kWhat != Beside::kCentre)) * kQuadBytes;
};
template <class F>
using SpanPlaces = Places<kSpanGroups<F>, F::kParts, kZerosOfRows<F> ? Beside::kZeros : F::kMinima ? Beside::kMinima : Beside::kCentre>;

inline void store_ints(uint8_t* to, Ints x) { _mm512_storeu_si512(to, x.v); }
inline Ints load_ints(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }

template <class F>
void expand_spans(const uint8_t* head, size_t spans, uint8_t* to) {
    using P = SpanPlaces<F>;
    static_assert(P::kTwinned == kScaled<F>);
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
        if constexpr (P::kTwinned)
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

// Sums [M, 16] of an expanded block of a format with these places; `centre` of its parts.
template <class P, size_t M>
void sum_spans(const uint8_t* span, const Tokens& x, int centre, float* sums) {
    Vec acc[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    for (size_t group = 0; group < x.groups; group += P::kGroups, span += P::kSpan) {
        const int8_t* codes = x.codes + group * kCodeGroup;
        const auto sums_of = [&](size_t i) { return x.sums + (i * x.groups + group) * 2; };
        const float* floats_of = reinterpret_cast<const float*>(span + P::kScale);
        Ints dot[M], beside[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) dot[i] = beside[i] = ints(0);
        if constexpr (P::kTwinned) {
            constexpr size_t kQuads = kGroupQuads / P::kParts;
#pragma GCC unroll 1
            for (size_t part = 0; part < P::kGroups * P::kParts; ++part) {
                const uint8_t* record = span + part / P::kParts * P::kGroup;
                const size_t first = part % P::kParts * kQuads;
                Ints pairs[M];
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) pairs[i] = ints(0);
                add_quads<M>(record + first * kQuadBytes, kQuads, codes + part / P::kParts * kCodeGroup + 4 * first, x.stride, pairs);
                const Ints by = load_ints(record + (kGroupQuads + part % P::kParts) * kQuadBytes);
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) dot[i] = dot[i] + widened(pairs[i], by);
            }
#pragma GCC unroll 1
            for (size_t part = 0; part < P::kGroups * P::kParts; ++part) {
                const Ints by = load_ints(span + P::kTwins + part * kQuadBytes);
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) {
                    const int32_t* s = sums_of(i);
                    beside[i] = beside[i] + by * ints(P::kParts == 2 ? s[part] : s[2 * part] + s[2 * part + 1]);
                }
            }
        } else {
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) {
                int32_t sum = 0;
                for (size_t j = 0; j < 2 * P::kGroups; ++j) sum += sums_of(i)[j];
                dot[i] = load_ints(span + P::kScale + kQuadBytes) * ints(-sum);
            }
#pragma GCC unroll 1
            for (size_t g = 0; g < P::kGroups; ++g) add_quads<M>(span + g * P::kGroup, kGroupQuads, codes + g * kCodeGroup, x.stride, dot);
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const float x_scale = x.scales[i * x.groups + group];
            if constexpr (P::kBeside == Beside::kCentre) dot[i] = dot[i] - beside[i] * ints(centre);
            acc[i] = add_span(acc[i], dot[i], load(floats_of), x_scale);
            if constexpr (P::kBeside == Beside::kMinima) acc[i] = add_minima(acc[i], beside[i], load(floats_of + kLanes), x_scale);
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) store(sums + i * kLanes, acc[i]);
}
template <class P, size_t M = kMostTileTokens>
void sum_spans_of(size_t m, const uint8_t* span, const Tokens& x, int centre, float* sums) {
    if constexpr (M > kLeastTileTokens)
        if (m < M) return sum_spans_of<P, M - 1>(m, span, x, centre, sums);
    sum_spans<P, M>(span, x, centre, sums);
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
            sum_spans_of<SpanPlaces<F>>(here, scratch, tokens_from(x, from), F::kZero, sums);
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
