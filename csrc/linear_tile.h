// Products of many tokens: a slice of K of 16 rows is expanded once to bytes and fp32 scales, then every token of a panel meets it there.
//
// Codes of up to 6 bits are multiplied as bytes and added up in 16 bits; 8-bit codes would overflow there and become 16-bit integers.
// Scratch of a call: the expanded slice, in the first-level cache; 16 accumulators a token; and, prepared once a panel, the activations'
// codes as 16-bit integers where the weights' are; sums of codes times -zero as pairs of 16 bits, so that what 16 bits add up are products
// with code - zero (16 * 16 * 127 < 2^15); or -(sum of codes) as fp32 for minima.
#pragma once

#include "linear_direct.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr int kTileTokens = 4;
constexpr size_t kDirectTokens = 4;      // at most so many are faster straight from the records
constexpr size_t kPanelTokens = 256, kPanelBytes = 192 << 10;        // of activations: they stay in the second-level cache

// Of one format: bytes of an expanded group and its parts, groups of a slice.
template <class F>
struct Expanded {
    static constexpr int kBits = F::Coding::kBits;
    static constexpr bool kWide = kBits == 8, kCentred = F::kZero > 0 && !kWide;
    // Not centred, the sums of a part overflow 16 bits: they are widened on the way.
    static constexpr bool kLong = !kWide && !kCentred && kRun<kBits> < kGroupQuads / F::kParts;
    static constexpr size_t kCodes = kGroupQuads * kQuadBytes * (kWide ? 2 : 1), kFloats = F::kParts * kLanes * 4;
    static constexpr size_t kGroup = kCodes + kFloats * (F::kMinima ? 2 : 1);
    static constexpr size_t kSliceGroups = kWide ? 8 : 16, kSlice = kSliceGroups * kGroup;
    static constexpr size_t kPrepared = (kWide ? 2 * kCodeGroup : 0) + (kCentred || F::kMinima ? 4 * F::kParts : 0);  // bytes of a token and group
};

// The even and the odd bytes as 16-bit integers: inputs 0 and 2 of a quad in one lane of 32 bits, 1 and 3 in another.
inline __m256i evens(__m256i codes) { return _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8); }
inline __m256i odds(__m256i codes) { return _mm256_srai_epi16(codes, 8); }

template <class F>
inline void expand_group(const uint8_t* head, const uint8_t* record, uint8_t* to) {
    using E = Expanded<F>;
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads; ++t) {
        const Quad w = F::Coding::quad(record, t);
        if (E::kWide) {
            const __m256i centre = _mm256_set1_epi8(static_cast<char>(0x80)), a = _mm256_xor_si256(w.a, centre), b = _mm256_xor_si256(w.b, centre);
            store_quad(to + 2 * t * kQuadBytes, {evens(a), evens(b)});
            store_quad(to + (2 * t + 1) * kQuadBytes, {odds(a), odds(b)});
        } else {
            store_quad(to + t * kQuadBytes, w);
        }
    }
    Vec scale[F::kParts], minimum[F::kParts];
    F::floats(head, record + F::Coding::kBytes, scale, minimum);
    float* floats = reinterpret_cast<float*>(to + E::kCodes);
    for (size_t part = 0; part < F::kParts; ++part) {
        store(floats + part * kLanes, scale[part]);
        if (F::kMinima) store(floats + (F::kParts + part) * kLanes, minimum[part]);
    }
}

// Bytes of a record with its share of what stands in front of a span.
template <class F>
constexpr size_t kFetched = (kSpanBytes<F> + F::kSpan / kCodeGroup - 1) / (F::kSpan / kCodeGroup);

template <class F>
void expand(const uint8_t* span, size_t spans, uint8_t* to) {
    for (size_t s = 0; s < spans; ++s, span += kSpanBytes<F>) {
        const uint8_t* record = span + F::kHead;
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, record += kRecordBytes<F>, to += Expanded<F>::kGroup) {
            expand_group<F>(span, record, to);
        }
    }
}

// What products with one group of codes need beside them.
template <class F>
inline void prepare_group(const int8_t* codes, const int32_t* sums, uint8_t* to) {
    using E = Expanded<F>;
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    if (E::kWide) {
        store_quad(to, {evens(x), odds(x)});
        to += 2 * kCodeGroup;
    }
    if (E::kCentred) {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
        __m256i s = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
        s = _mm256_mullo_epi16(_mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1)), _mm256_set1_epi16(-F::kZero));
        const __m128i low = _mm256_castsi256_si128(s), high = _mm256_extracti128_si256(s, 1);
        set_word(to, static_cast<uint32_t>(_mm_cvtsi128_si32(F::kParts == 2 ? low : _mm_add_epi16(low, high))));
        if (F::kParts == 2) set_word(to + 4, static_cast<uint32_t>(_mm_cvtsi128_si32(high)));
    } else if (F::kMinima) {
        for (size_t part = 0; part < F::kParts; ++part) {
            const float sum = -static_cast<float>(F::kParts == 2 ? sums[part] : sums[0] + sums[1]);
            memcpy(to + 4 * part, &sum, 4);
        }
    }
}

// Tokens of a panel as a tile sees them.
struct Panel {
    Tokens x;
    const uint8_t* prepared;             // [tokens, groups, kPrepared]
    size_t prepared_stride;              // bytes from token to token
};

// Sums of products of 16 rows: pairs of 16 bits, or of 8-bit codes and of those that overflow 16 bits before a part ends, 32 bits.

struct Sum { __m256i a, b; };

inline __m256i broadcast(const void* p) { return _mm256_set1_epi32(static_cast<int32_t>(word(p))); }

// Of one part of a group: bytes, `first` is what the sums begin with.
template <class F, int M>
inline void byte_products(const uint8_t* quads, const int8_t* codes, size_t stride, const Pairs* first, Sum* sums) {
    using E = Expanded<F>;
    constexpr size_t kQuads = kGroupQuads / F::kParts, kSteps = E::kLong ? kRun<E::kBits> : kQuads;
    Ints dot[M];
    Pairs pairs[M];
    RIDGELINE_UNROLL
    for (size_t run = 0; run < kQuads; run += kSteps) {
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = run == 0 ? first[i] : no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kSteps; ++t) {
            const Quad w = load_quad(quads + t * kQuadBytes);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) pairs[i] = products<E::kBits>(pairs[i], w, codes + i * stride + 4 * t);
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i)
            if (E::kLong) dot[i] = run == 0 ? widen<E::kBits>(pairs[i]) : dot[i] + widen<E::kBits>(pairs[i]);
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) sums[i] = E::kLong ? Sum{dot[i].a, dot[i].b} : Sum{pairs[i].a, pairs[i].b};
}

// The same with 16-bit integers on both sides.
template <class F, int M>
inline void wide_products(const uint8_t* quads, const uint8_t* codes, size_t stride, Sum* sums) {
    Sum dot[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) dot[i] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    RIDGELINE_UNROLL
    for (size_t half = 0; half < 2 * kGroupQuads / F::kParts; ++half) {          // evens and odds of the quads in turn
        const Quad w = load_quad(quads + half * kQuadBytes);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const __m256i v = broadcast(codes + i * stride + half / 2 * 4 + half % 2 * kCodeGroup);
            dot[i].a = kept(_mm256_add_epi32(dot[i].a, _mm256_madd_epi16(w.a, v)));
            dot[i].b = kept(_mm256_add_epi32(dot[i].b, _mm256_madd_epi16(w.b, v)));
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) sums[i] = dot[i];
}

// First step: sums of products of `count` groups for M tokens, to `sums` [count, parts, M]. Nothing waits for anything here, so this is where
// the records of the next slice are fetched, unless `next` is null.
template <class F, int M>
void sum_products(const uint8_t* slice, const uint8_t* next, const Panel& panel, size_t token, size_t group, size_t count, Sum* sums) {
    using E = Expanded<F>;
    constexpr size_t kQuads = kGroupQuads / F::kParts;
    const size_t stride = panel.x.stride, prepared_stride = panel.prepared_stride;
    const int8_t* codes = panel.x.codes + token * stride + group * kCodeGroup;
    const uint8_t* prepared = panel.prepared + token * prepared_stride + group * E::kPrepared;
    for (size_t g = 0; g < count; ++g, slice += E::kGroup, codes += kCodeGroup, prepared += E::kPrepared) {
        if (next) fetch(next + g * kFetched<F>, kFetched<F>);
        RIDGELINE_UNROLL
        for (size_t part = 0; part < F::kParts; ++part, sums += M) {
            if constexpr (E::kWide) {
                wide_products<F, M>(slice + 2 * part * kQuads * kQuadBytes, prepared + part * kQuads * 4, prepared_stride, sums);
            } else {
                Pairs first[M];
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) {
                    const __m256i zero = E::kCentred ? broadcast(prepared + i * prepared_stride + 4 * part) : _mm256_setzero_si256();
                    first[i] = {zero, zero};
                }
                byte_products<F, M>(slice + part * kQuads * kQuadBytes, codes + part * kQuads * 4, stride, first, sums);
            }
        }
    }
}

// Second step: the sums, widened and scaled, onto the accumulators [M, 16], groups ascending.
template <class F, int M>
void add_sums(const uint8_t* slice, const Panel& panel, size_t token, size_t group, size_t count, const Sum* sums, float* acc) {
    using E = Expanded<F>;
    const Tokens& x = panel.x;
    const float* scales = x.scales + token * x.groups + group;
    const uint8_t* prepared = panel.prepared + token * panel.prepared_stride + group * E::kPrepared + (E::kWide ? 2 * kCodeGroup : 0);
    Vec sum[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) sum[i] = load(acc + i * kLanes);
    for (size_t g = 0; g < count; ++g, slice += E::kGroup, ++scales, prepared += E::kPrepared) {
        const float* floats = reinterpret_cast<const float*>(slice + E::kCodes);
        RIDGELINE_UNROLL
        for (size_t part = 0; part < F::kParts; ++part, sums += M) {
            const Vec scale = load(floats + part * kLanes);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) {
                const Vec x_scale = all(scales[i * x.groups]);
                const Ints dot = E::kWide || E::kLong ? Ints{sums[i].a, sums[i].b} : widen<E::kBits>(Pairs{sums[i].a, sums[i].b});
                float total = 0.0f;
                if (F::kMinima) memcpy(&total, prepared + i * panel.prepared_stride + 4 * part, 4);
                const float* minima = floats + (F::kParts + part) * kLanes;
                const Vec whole = kZerosOfRows<F> ? without_zeros(dot, total, load(minima)) : ridgeline::RIDGELINE_LEVEL::floats(dot);
                sum[i] = fma(whole, scale * x_scale, sum[i]);
                if (F::kMinima && !kZerosOfRows<F>) sum[i] = fma(all(total), load(minima) * x_scale, sum[i]);
            }
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) store(acc + i * kLanes, sum[i]);
}

template <class F, int M>
void tile(const uint8_t* slice, const uint8_t* next, const Panel& panel, size_t token, size_t group, size_t count, float* acc) {
    Sum sums[Expanded<F>::kSliceGroups * F::kParts * M];
    sum_products<F, M>(slice, next, panel, token, group, count, sums);
    add_sums<F, M>(slice, panel, token, group, count, sums, acc);
}

template <class F, int M>
void tile_of(size_t m, const uint8_t* slice, const uint8_t* next, const Panel& panel, size_t token, size_t group, size_t count, float* acc) {
    if constexpr (M > 1)
        if (m < M) return tile_of<F, M - 1>(m, slice, next, panel, token, group, count, acc);
    tile<F, M>(slice, next, panel, token, group, count, acc);
}

// Bytes of a token: a line more, so that the tokens of a tile never lie 4096 bytes apart, where loads wait for stores of each other's.
template <class F>
size_t prepared_bytes(size_t groups) { return Expanded<F>::kPrepared == 0 ? 0 : groups * Expanded<F>::kPrepared + 64; }

// How many of m tokens go through scratch at a time: a multiple of a tile, or 0 where a row is too long for scratch.
template <class F>
size_t panel_tokens(size_t k) {
    const size_t each = kLanes * 4 + prepared_bytes<F>(k / kCodeGroup);
    size_t tokens = (kLinearScratch - Expanded<F>::kSlice) / each, near = kPanelBytes / k;
    near = near < 4 * kTileTokens ? 4 * kTileTokens : near > kPanelTokens ? kPanelTokens : near;
    return (tokens < near ? tokens : near) / kTileTokens * kTileTokens;
}

template <class F>
void prepare(const Tokens& x, size_t m, uint8_t* to) {
    using E = Expanded<F>;
    if (E::kPrepared == 0) return;
    for (size_t i = 0; i < m; ++i, to += prepared_bytes<F>(x.groups))
        for (size_t g = 0; g < x.groups; ++g)
            prepare_group<F>(x.codes + i * x.stride + g * kCodeGroup, x.sums + (i * x.groups + g) * 2, to + g * E::kPrepared);
}

// Outputs of `count` blocks for the m tokens of a panel.
template <class F>
void multiply_panel(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    using E = Expanded<F>;
    uint8_t* slice = scratch;
    float* acc = reinterpret_cast<float*>(scratch + E::kSlice);
    uint8_t* prepared = scratch + E::kSlice + m * kLanes * 4;
    const Panel panel = {x, prepared, prepared_bytes<F>(x.groups)};
    prepare<F>(x, m, prepared);
    for (size_t block = first; block < first + count; ++block) {
        const uint8_t* data = matrix.data + block * block_bytes<F>(matrix.k);
        memset(acc, 0, m * kLanes * 4);
        for (size_t group = 0; group < x.groups; group += E::kSliceGroups) {
            const size_t groups = x.groups - group < E::kSliceGroups ? x.groups - group : E::kSliceGroups, each = F::kSpan / kCodeGroup;
            const uint8_t *span = data + group / each * kSpanBytes<F>, *next = span + groups / each * kSpanBytes<F>;
            expand<F>(span, groups / each, slice);
            for (size_t i = 0; i < m; i += kTileTokens)
                tile_of<F, kTileTokens>(m - i < kTileTokens ? m - i : kTileTokens, slice, i == 0 ? next : nullptr, panel, i, group, groups, acc + i * kLanes);
        }
        const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
        for (size_t i = 0; i < m; ++i) write(load(acc + i * kLanes), to.out + i * to.stride + block * kBlockRows, columns, to.add);
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#endif
