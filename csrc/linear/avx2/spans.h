// Products of many tokens with formats of spans: a span of 16 rows is expanded once to bytes, integer factors and fp32 scales, then every token of
// a panel meets it there.
//
// Codes of up to 6 bits are multiplied as bytes and added up in 16 bits, which the factors of their part widen; 8-bit codes become 16-bit
// integers. For stepped activations factors also stand there times 2 and 4: a token takes those of its step, which costs it no instruction.
// Scratch of a call: the expanded span; 16 accumulators per token; and, prepared once per panel, what four tokens bring to a span, in the
// order in which it is read: words of codes; for each part of a format with a centre -centre * (sum of codes), as pairs of 16 bits with which
// products begin, so that they fit (16 * 16 * 127 < 2^15); sums of codes as twins want them; scales; and where the factors of each group are.
#pragma once

#include "linear/avx2/groups.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kSpanTokens = 4;        // of a tile
constexpr size_t kSpanPanel = 256, kSpanPanelBytes = 320 << 10;      // of prepared tokens: they stay in the second-level cache

// Of one format: places in an expanded span, and in what a tile of tokens brings to it.
template <class F>
struct SpanPlaces {
    static constexpr int kBits = F::Coding::kBits;
    static constexpr bool kWide = kBits == 8;
    static constexpr size_t kEach = 4 * kSpanTokens;                     // bytes of a word or float of all tokens
    static constexpr size_t kWords = kGroupQuads * (kWide ? 2 : 1);      // of four codes, or two 16-bit integers
    static constexpr size_t kFactors = kScaled<F> ? F::kParts * kQuadBytes : 0;          // of one step
    static constexpr size_t kGroup = kWords * kQuadBytes + kFactors * (kSteppable<F> ? kMostSteps + 1 : 1);
    static constexpr size_t kTwinWords = kSpanMinima<F> ? kSpanParts<F> / 2 : kZerosOfRows<F> ? 1 : 0;
    static constexpr size_t kTwins = kSpanGroups<F> * kGroup, kScale = kTwins + kTwinWords * kQuadBytes;
    static constexpr size_t kSpan = kScale + (kSpanMinima<F> ? 2 : 1) * kQuadBytes;
    static constexpr size_t kCentres = kSpanGroups<F> * kWords * kEach;
    static constexpr size_t kTotals = kCentres + (kCentredParts<F> ? kSpanParts<F> * kEach : 0);
    static constexpr size_t kScales = kTotals + kTwinWords * kEach, kPlaces = kScales + kEach;
    static constexpr size_t kTile = kPlaces + (kSteppable<F> ? kSpanGroups<F> * kEach : 0);
};

inline void store_ints(uint8_t* to, __m256i a, __m256i b) { store_quad(to, {a, b}); }
inline Ints load_ints(const uint8_t* p) { const Quad q = load_quad(p); return {q.a, q.b}; }

template <class F>
__attribute__((always_inline)) inline void expand_record(const uint8_t* record, bool stepped, uint8_t* to) {
    using P = SpanPlaces<F>;
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads; ++t) {
        const Quad w = F::Coding::quad(record, t);
        if (!P::kWide) {
            store_quad(to + t * kQuadBytes, w);
            continue;
        }
        const __m256i centre = _mm256_set1_epi8(static_cast<char>(0x80)), a = _mm256_xor_si256(w.a, centre), b = _mm256_xor_si256(w.b, centre);
        store_ints(to + 2 * t * kQuadBytes, evens(a), evens(b));
        store_ints(to + (2 * t + 1) * kQuadBytes, odds(a), odds(b));
    }
    for (size_t part = 0; part < F::kParts && kScaled<F>; ++part) {
        const Factors by = factors<F::kScaleField>(record + F::Coding::kBytes + part * kBlockRows);
        uint8_t* place = to + (P::kWords + part) * kQuadBytes;
        store_ints(place, by.a, by.b);
        for (int step = 1; step <= kMostSteps && kSteppable<F> && stepped; ++step)
            store_ints(place + static_cast<size_t>(step) * P::kFactors, _mm256_slli_epi16(by.a, step), _mm256_slli_epi16(by.b, step));
    }
}

template <class F>
inline void expand_span(const uint8_t* head, bool stepped, uint8_t* to) {
    using P = SpanPlaces<F>;
    const uint8_t* record = head + F::kHead;
    for (size_t g = 0; g < kSpanGroups<F>; ++g) expand_record<F>(record + g * kRecordBytes<F>, stepped, to + g * P::kGroup);
    for (size_t i = 0; i < P::kTwinWords; ++i) {
        Twins two;
        if constexpr (kZerosOfRows<F>) {
            const __m256i low = _mm256_set1_epi32(0xffff);
            const Ints zeros = F::zeros(head);
            two = {_mm256_and_si256(zeros.a, low), _mm256_and_si256(zeros.b, low)};
        } else {
            two = twins_of<F>(record, i);
        }
        store_ints(to + P::kTwins + i * kQuadBytes, two.a, two.b);
    }
    float* floats = reinterpret_cast<float*>(to + P::kScale);
    store(floats, F::scale(head));
    if constexpr (kSpanMinima<F>) store(floats + kLanes, F::minimum(head));
}

// Codes of four tokens, in pairs of words, and the centres of a group.
template <class F>
inline void prepare_group(const int8_t* const* rows, uint8_t* words, uint8_t* centres) {
    using P = SpanPlaces<F>;
    __m256i row[kSpanTokens];
    for (size_t i = 0; i < kSpanTokens; ++i) row[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i]));
    const __m256i a = _mm256_unpacklo_epi32(row[0], row[1]), b = _mm256_unpackhi_epi32(row[0], row[1]);
    const __m256i c = _mm256_unpacklo_epi32(row[2], row[3]), d = _mm256_unpackhi_epi32(row[2], row[3]);
    // Word i of all tokens, and word i + 4 beside it.
    const __m256i four[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
    const auto put = [](uint8_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); };
    __m256i pairs = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; ++i) {
        uint8_t* pair = words + i * kPairBytes * (P::kWide ? 2 : 1);
        put(pair, P::kWide ? evens(four[i]) : four[i]);
        if (P::kWide) put(pair + kPairBytes, odds(four[i]));
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(1), four[i]));
    }
    if (kCentredParts<F>) put(centres, _mm256_mullo_epi16(pairs, _mm256_set1_epi16(-F::kZero)));
}

// What `m` tokens, 1 to 4, bring to the span from group `group` on; the last stands in for those that are missing.
template <class F>
inline void prepare_span(const Tokens& x, size_t m, size_t group, uint8_t* to) {
    using P = SpanPlaces<F>;
    for (size_t g = 0; g < kSpanGroups<F>; ++g) {
        const int8_t* rows[kSpanTokens];
        for (size_t i = 0; i < kSpanTokens; ++i) rows[i] = x.codes + (i < m ? i : m - 1) * x.stride + (group + g) * kCodeGroup;
        prepare_group<F>(rows, to + g * P::kWords * P::kEach, to + P::kCentres + g * F::kParts * P::kEach);
    }
    for (size_t i = 0; i < kSpanTokens; ++i) {
        const size_t place = (i < m ? i : m - 1) * x.groups + group;
        const int32_t* sums = x.sums + place * 2;
        Steps steps = {{}, x.scales[place]};
        if (kSteppable<F> && x.stepped) steps.gather(x.scales + place);
        memcpy(to + P::kScales + 4 * i, &steps.scale, 4);
        for (size_t g = 0; g < kSpanGroups<F> && kSteppable<F> && x.stepped; ++g)
            set_word(to + P::kPlaces + g * P::kEach + 4 * i, steps.by[g] * P::kFactors);
        if constexpr (kZerosOfRows<F>) set_word(to + P::kTotals + 4 * i, static_cast<uint16_t>(-total<F>(sums)));
        if constexpr (kSpanMinima<F>) {
            Totals<F::kParts> totals;
            totals.gather(sums);
            for (size_t pair = 0; pair < P::kTwinWords; ++pair) set_word(to + P::kTotals + pair * P::kEach + 4 * i, totals.words[pair]);
        }
    }
}

// Products of an expanded group with M tokens onto their integers. places: of the factors that each of them takes, if kStepped.
template <class F, int M, bool kStepped>
__attribute__((always_inline)) inline void add_products(const uint8_t* group, const uint8_t* words, const uint8_t* centres, const uint8_t* places,
                                                        Sum* dots) {
    using P = SpanPlaces<F>;
    if constexpr (P::kWide) {
        sum_quads<false, M, P::kWords, true>(group, words, dots);
    } else {
        constexpr size_t kQuads = kGroupQuads / F::kParts, kSteps = kCentredParts<F> || kRun<P::kBits> > kQuads ? kQuads : kRun<P::kBits>;
        const uint8_t* by = group + P::kWords * kQuadBytes;
        RIDGELINE_UNROLL
        for (size_t run = 0; run < kGroupQuads; run += kSteps) {
            const size_t part = run / kQuads;
            Sum sums[M];
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M && kCentredParts<F>; ++i) sums[i].a = sums[i].b = broadcast(centres + part * P::kEach + 4 * i);
            sum_quads<true, M, kSteps, kCentredParts<F>>(group + run * kQuadBytes, words + place_of<true>(run), sums);
            Ints scale = {};
            if (kScaled<F> && !kStepped) scale = load_ints(by + part * kQuadBytes);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) {
                Ints dot;
                if constexpr (kScaled<F>) {
                    if (kStepped) scale = load_ints(by + part * kQuadBytes + word(places + 4 * i));
                    dot = widened({sums[i].a, sums[i].b}, {scale.a, scale.b});
                } else {
                    dot = widen<P::kBits>({sums[i].a, sums[i].b});
                }
                dots[i] = {_mm256_add_epi32(dots[i].a, dot.a), _mm256_add_epi32(dots[i].b, dot.b)};
            }
        }
    }
}

// Twins of an expanded span times the totals of M tokens, onto `dots`.
template <class F, int M>
__attribute__((always_inline)) inline void add_twins(const uint8_t* twins, const uint8_t* totals, Sum* dots) {
    using P = SpanPlaces<F>;
    RIDGELINE_UNROLL
    for (size_t pair = 0; pair < P::kTwinWords; ++pair) {
        const Ints two = load_ints(twins + pair * kQuadBytes);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const __m256i total = broadcast(totals + pair * P::kEach + 4 * i);
            dots[i].a = _mm256_add_epi32(dots[i].a, _mm256_madd_epi16(two.a, total));
            dots[i].b = _mm256_add_epi32(dots[i].b, _mm256_madd_epi16(two.b, total));
        }
    }
}

// What comes from memory next, while tiles are in work: so many lines with each group of each tile, that memory is never idle nor crowded.
struct Coming {
    const uint8_t *at, *end;
    size_t lines;
    void fetch() {
        for (size_t i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, 2);
    }
};

// One span onto the accumulators [M, 16] of `m` tokens, at most M.
template <class F, int M, bool kStepped>
inline void add_expanded(size_t m, const uint8_t* span, const uint8_t* tile, float* acc, Coming& coming) {
    using P = SpanPlaces<F>;
    if constexpr (M > 1)
        if (m < M) return add_expanded<F, M - 1, kStepped>(m, span, tile, acc, coming);
    Sum dots[M] = {}, minima[M] = {};
    if constexpr (kZerosOfRows<F>) add_twins<F, M>(span + P::kTwins, tile + P::kTotals, dots);
    if constexpr (kSpanMinima<F>) add_twins<F, M>(span + P::kTwins, tile + P::kTotals, minima);
#pragma GCC unroll 1
    for (size_t g = 0; g < kSpanGroups<F>; ++g) {
        coming.fetch();
        add_products<F, M, kStepped>(span + g * P::kGroup, tile + g * P::kWords * P::kEach, tile + P::kCentres + g * F::kParts * P::kEach,
                                     tile + P::kPlaces + g * P::kEach, dots);
    }
    const float* scales = reinterpret_cast<const float*>(span + P::kScale);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        float x_scale;
        memcpy(&x_scale, tile + P::kScales + 4 * i, 4);
        Vec sum = add_span(load(acc + i * kLanes), {dots[i].a, dots[i].b}, load(scales), x_scale);
        if constexpr (kSpanMinima<F>) sum = add_minima(sum, {minima[i].a, minima[i].b}, load(scales + kLanes), x_scale);
        store(acc + i * kLanes, sum);
    }
}

// How many tokens go through scratch at a time: a multiple of a tile, or 0 where a row is too long for scratch.
template <class F>
size_t span_panel(size_t k) {
    const size_t prepared = k / F::kSpan * SpanPlaces<F>::kTile, each = kSpanTokens * kLanes * 4 + prepared;
    size_t tiles = (kLinearScratch - SpanPlaces<F>::kSpan) / each, near = kSpanPanelBytes / prepared;
    near = near < 4 ? 4 : near > kSpanPanel / kSpanTokens ? kSpanPanel / kSpanTokens : near;
    return (tiles < near ? tiles : near) * kSpanTokens;
}

// Outputs of `count` blocks for the m tokens of a panel.
template <class F, bool kStepped>
void multiply_panel_of_spans(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    using P = SpanPlaces<F>;
    const size_t spans = matrix.k / F::kSpan, tiles = (m + kSpanTokens - 1) / kSpanTokens;
    const auto here = [m](size_t tile) { return m - tile * kSpanTokens < kSpanTokens ? m - tile * kSpanTokens : kSpanTokens; };
    uint8_t *expanded = scratch, *prepared = scratch + P::kSpan, *end = prepared;
    for (size_t span = 0; span < spans; ++span)
        for (size_t i = 0; i < tiles; ++i, end += P::kTile) {
            prepare_span<F>(tokens_from(x, i * kSpanTokens), here(i), span * kSpanGroups<F>, end);
        }
    float* acc = reinterpret_cast<float*>(end);
    const size_t steps = tiles * kSpanGroups<F>, lines = (kSpanBytes<F> / 64 + steps) / steps;
    for (size_t block = first; block < first + count; ++block) {
        const uint8_t *packed = matrix.data + block * block_bytes<F>(matrix.k), *tile = prepared;
        memset(acc, 0, m * kLanes * 4);
        for (size_t span = 0; span < spans; ++span, packed += kSpanBytes<F>) {
            Coming coming = {packed + kAhead, packed + kAhead + kSpanBytes<F>, lines};
            expand_span<F>(packed, x.stepped, expanded);
            for (size_t i = 0; i < tiles; ++i, tile += P::kTile)
                add_expanded<F, kSpanTokens, kStepped>(here(i), expanded, tile, acc + i * kSpanTokens * kLanes, coming);
        }
        const size_t columns = columns_of(matrix, block);
        for (size_t i = 0; i < m; ++i) write(load(acc + i * kLanes), to.out + i * to.stride + block * kBlockRows, columns);
    }
}

// At most so many tokens are faster straight from the records.
template <class F>
constexpr size_t kDirectSpanTokens =
    F::Coding::kBits == 8 ? 16 : F::Coding::kBits == 6 ? 5 : F::Coding::kBits >= 4 && (kSpanMinima<F> || kZerosOfRows<F>) ? 12 : 6;

// Whether so many tokens are multiplied here, and then their outputs.
template <class F>
bool multiply_tiled(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    if constexpr (!F::kIntegerSpans) {
        return multiply_groups_tiled<F>(matrix, x, m, to, first, count, scratch);
    } else {
        if (F::Coding::kBits == 7) return false;             // 16 bits do not hold the sums of a part
        const size_t panel = span_panel<F>(matrix.k);
        if (m <= kDirectSpanTokens<F> || panel == 0) return false;
        for (size_t from = 0; from < m; from += panel) {
            const Product part = {to.out + from * to.stride, to.stride};
            const auto multiply = kSteppable<F> && x.stepped ? multiply_panel_of_spans<F, kSteppable<F>> : multiply_panel_of_spans<F, false>;
            multiply(matrix, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, part, first, count, scratch);
        }
        return true;
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
