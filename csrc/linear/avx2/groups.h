// Products of many tokens with formats of groups: a group of 16 rows is expanded once to bytes and fp32 scales, then every token of a panel meets
// it there.
//
// Codes of up to 6 bits are multiplied as bytes and added up in 16 bits; 8-bit codes would overflow there and become 16-bit integers.
// Scratch of a call: the expanded group; 16 accumulators per token; and, prepared once per panel, what four tokens bring to a group, in the order in
// which it is read: words of codes, scales, and what belongs to the sums of codes. Those are multiplied by -zero, as pairs of 16 bits, so that
// what 16 bits add up are products with code - zero (16 * 16 * 127 < 2^15); or they are -(sum of codes) as fp32 for minima.
#pragma once

#include "linear/direct.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Sums of products of 16 rows: pairs of 16 bits, or integers of 32.
struct Sum { __m256i a, b; };

// Words of four tokens, of four codes or two 16-bit integers, come in pairs: one of the first half of a group beside its fellow of the second.
constexpr size_t kPairBytes = 32;
template <bool kBytes>
constexpr size_t kHalfWords = kBytes ? kGroupQuads / 2 : kGroupQuads;
template <bool kBytes>
constexpr size_t place_of(size_t word) { return word % kHalfWords<kBytes> * kPairBytes + word / kHalfWords<kBytes> * (kPairBytes / 2); }

// Products of `kQuads` quads with M of four tokens' words, the first in its place; onto what `sums` begin with if kOnto.
template <bool kBytes, int M, size_t kQuads, bool kOnto>
__attribute__((always_inline)) inline void sum_quads(const uint8_t* quads, const uint8_t* words, Sum* sums) {
    constexpr size_t kLag = 2, kTemporary = kLag + 1, kSteps = kQuads * M;
    Sum product[kTemporary];
    Quad w = {};
#pragma GCC unroll 72
    for (size_t step = 0; step < kSteps + kLag; ++step) {
        if (step < kSteps) {
            const size_t quad = step / M;
            if (step % M == 0) w = {ordered_load(quads + quad * kQuadBytes), ordered_load(quads + quad * kQuadBytes + 32)};
            const __m256i x = ordered_broadcast(words + place_of<kBytes>(quad) + 4 * (step % M));
            product[step % kTemporary].a = ordered_products<kBytes>(w.a, x);
            product[step % kTemporary].b = ordered_products<kBytes>(w.b, x);
        }
        if (step < kLag) continue;
        const size_t done = step - kLag;
        if (done < M && !kOnto) {
            sums[done] = product[done % kTemporary];
        } else {
            Sum& sum = sums[done % M];
            sum = {ordered_sum<kBytes>(sum.a, product[done % kTemporary].a), ordered_sum<kBytes>(sum.b, product[done % kTemporary].b)};
        }
    }
}

constexpr size_t kTileTokens = 4;
constexpr size_t kPanelTokens = 256, kPanelBytes = 320 << 10;        // of prepared tokens: they stay in the second-level cache
constexpr size_t kPartInputs = 2048;     // of a long row: a multiple of every span

constexpr size_t kPrefetched = 3072;       // bytes between the record in work and the one that is fetched

// At most so many tokens are faster straight from the records, four at a time: of 8 bits, which tiles would hold as 16; of 4 bits, whose codes need
// little taking apart, unless minima come on top.
template <class F>
constexpr bool kAffine = F::kMinima && !kZerosOfRows<F>;
template <class F>
constexpr size_t kDirectTokens = F::Coding::kBits == 8 ? 24 : F::Coding::kBits == 4 && !kAffine<F> ? 8 : F::Coding::kBits == 5 ? 4 : 3;

inline void prefetch(const uint8_t* p, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(p + line);
}

// Of one format: bytes of an expanded group, and of what a tile of tokens brings to a group.
template <class F>
struct Expanded {
    static constexpr int kBits = F::Coding::kBits;
    static constexpr bool kWide = kBits == 8, kCentred = F::kZero > 0 && !kWide;
    // Not centred, the sums of a group overflow 16 bits: they are widened on the way.
    static constexpr bool kLong = !kWide && !kCentred && kRun<kBits> < kGroupQuads;
    static constexpr size_t kWords = kGroupQuads * (kWide ? 2 : 1);      // of four codes, or two 16-bit integers
    static constexpr size_t kCodes = kWords * kQuadBytes, kFloats = kLanes * 4;
    static constexpr size_t kGroup = kCodes + kFloats * (F::kMinima ? 2 : 1);
    static constexpr size_t kEach = 4 * kTileTokens;                     // bytes of a word or float of all tokens
    static constexpr size_t kScales = kWords * kEach, kTotals = kScales + kEach;
    static constexpr size_t kTile = kTotals + (kCentred || F::kMinima ? kEach : 0);
};

// The even and the odd bytes as 16-bit integers: inputs 0 and 2 of a quad in one lane of 32 bits, 1 and 3 in another.
inline __m256i evens(__m256i codes) { return _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8); }
inline __m256i odds(__m256i codes) { return _mm256_srai_epi16(codes, 8); }

template <class F>
__attribute__((always_inline)) inline void expand_group(const uint8_t* head, const uint8_t* record, uint8_t* to) {
    using E = Expanded<F>;
    constexpr size_t kTogether = E::kWide ? 1 : 4;       // quads that are read before one is written: planes stay in registers
    RIDGELINE_UNROLL
    for (size_t first = 0; first < kGroupQuads; first += kTogether) {
        Quad w[kTogether];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kTogether; ++i) w[i] = F::Coding::quad(record, first + i);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kTogether; ++i) {
            if (!E::kWide) {
                store_quad(to + (first + i) * kQuadBytes, w[i]);
                continue;
            }
            const __m256i centre = _mm256_set1_epi8(static_cast<char>(0x80)), a = _mm256_xor_si256(w[i].a, centre), b = _mm256_xor_si256(w[i].b, centre);
            store_quad(to + 2 * first * kQuadBytes, {evens(a), evens(b)});
            store_quad(to + (2 * first + 1) * kQuadBytes, {odds(a), odds(b)});
        }
    }
    Vec scale, minimum;
    F::floats(head, record + F::Coding::kBytes, &scale, &minimum);
    float* floats = reinterpret_cast<float*>(to + E::kCodes);
    store(floats, scale);
    if (F::kMinima) store(floats + kLanes, minimum);
}

inline __m256i codes_of(const Tokens& x, size_t token, size_t group) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.codes + token * x.stride + group * kCodeGroup));
}
inline void store_words(uint8_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

// What `m` tokens, 1 to 4, bring to one group; the last stands in for those that are missing.
template <class F>
inline void prepare_tile(const Tokens& x, size_t m, size_t group, uint8_t* to) {
    using E = Expanded<F>;
    const size_t second = m > 1, third = m > 2 ? 2 : second, last = m - 1;
    const __m256i w = codes_of(x, 0, group), y = codes_of(x, second, group), z = codes_of(x, third, group), v = codes_of(x, last, group);
    const __m256i a = _mm256_unpacklo_epi32(w, y), b = _mm256_unpackhi_epi32(w, y), c = _mm256_unpacklo_epi32(z, v), d = _mm256_unpackhi_epi32(z, v);
    // Word i of all tokens, and word i + 4 beside it.
    const __m256i words[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
    __m256i pairs = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; ++i) {
        uint8_t* pair = to + i * kPairBytes * (E::kWide ? 2 : 1);
        store_words(pair, E::kWide ? evens(words[i]) : words[i]);
        if (E::kWide) store_words(pair + kPairBytes, odds(words[i]));
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(1), words[i]));
    }
    const float* scales = x.scales + group;
    const float four[4] = {scales[0], scales[second * x.groups], scales[third * x.groups], scales[last * x.groups]};
    memcpy(to + E::kScales, four, sizeof four);
    if (!E::kCentred && !F::kMinima) return;
    const __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128 whole = _mm_cvtepi32_ps(_mm_madd_epi16(sum, _mm_set1_epi16(1))), minus = _mm_xor_ps(whole, _mm_set1_ps(-0.0f));
    __m128i totals = _mm_castps_si128(minus);
    if (E::kCentred) totals = _mm_mullo_epi16(sum, _mm_set1_epi16(kScreens<F> ? -16 : -F::kZero));
    if (kScreens<F>) totals = _mm_sub_epi16(totals, _mm_mulhrs_epi16(totals, _mm_set1_epi16(896)));  // -16 times a sum: less 7 / 256 of that -15.5625
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + E::kTotals), totals);
}

template <class F>
void prepare_groups(const Tokens& x, size_t m, size_t first, size_t count, uint8_t* to) {
    for (size_t group = first; group < first + count; ++group)
        for (size_t i = 0; i < m; i += kTileTokens, to += Expanded<F>::kTile) {
            const Tokens tile = {x.codes + i * x.stride, x.scales + i * x.groups, nullptr, x.stride, x.groups};
            if (m - i < kTileTokens) prepare_tile<F>(tile, m - i, group, to);
            else prepare_tile<F>(tile, kTileTokens, group, to);      // a constant, which saves the addresses of those that are missing
        }
}

inline __m256i broadcast(const void* p) { return _mm256_set1_epi32(static_cast<int32_t>(word(p))); }

// Sums of products of a group, which begin with what is in `sums` where a format is centred.
template <class F, int M>
__attribute__((always_inline)) inline void group_products(const uint8_t* quads, const uint8_t* words, Sum* sums) {
    using E = Expanded<F>;
    if constexpr (!E::kLong) {
        sum_quads<!E::kWide, M, E::kWords, E::kCentred>(quads, words, sums);
    } else {
        constexpr size_t kSteps = kRun<E::kBits>;
        RIDGELINE_UNROLL
        for (size_t run = 0; run < E::kWords; run += kSteps) {
            Sum pairs[M];
            sum_quads<true, M, kSteps, false>(quads + run * kQuadBytes, words + place_of<true>(run), pairs);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) {
                const Ints dot = widen<E::kBits>(Pairs{pairs[i].a, pairs[i].b}), sum = run == 0 ? dot : dot + Ints{sums[i].a, sums[i].b};
                sums[i] = {sum.a, sum.b};
            }
        }
    }
}

// One group onto the accumulators [M, 16] of a tile.
template <class F, int M>
__attribute__((always_inline)) inline void add_group(const uint8_t* group, const uint8_t* tile, float* acc) {
    using E = Expanded<F>;
    asm volatile("" : "+r"(group));      // else the compiler keeps the address of every quad, most of them on the stack
    const float* floats = reinterpret_cast<const float*>(group + E::kCodes);
    Sum sums[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M && E::kCentred; ++i) sums[i].a = sums[i].b = broadcast(tile + E::kTotals + 4 * i);
    group_products<F, M>(group, tile, sums);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const Ints dot = E::kWide || E::kLong ? Ints{sums[i].a, sums[i].b} : widen<E::kBits>(Pairs{sums[i].a, sums[i].b});
        float x_scale, total = 0.0f;
        memcpy(&x_scale, tile + E::kScales + 4 * i, 4);
        if (F::kMinima) memcpy(&total, tile + E::kTotals + 4 * i, 4);
        const Vec whole = kZerosOfRows<F> ? without_zeros(dot, total, load(floats + kLanes)) : ridgeline::RIDGELINE_LEVEL::floats(dot);
        Vec sum = fma(whole, load(floats) * all(x_scale), load(acc + i * kLanes));
        if (kAffine<F>) sum = fma(all(total), load(floats + kLanes) * all(x_scale), sum);
        store(acc + i * kLanes, sum);
    }
}

template <class F, int M>
inline void add_group_of(size_t m, const uint8_t* group, const uint8_t* tile, float* acc) {
    if constexpr (M > 1)
        if (m < M) return add_group_of<F, M - 1>(m, group, tile, acc);
    add_group<F, M>(group, tile, acc);
}

// How many of m tokens go through scratch at a time: a multiple of a tile, or 0 where a row is too long for scratch.
template <class F>
size_t panel_tokens(size_t k) {
    const size_t prepared = k / kCodeGroup * Expanded<F>::kTile, each = kTileTokens * kLanes * 4 + prepared;
    size_t tiles = (kLinearScratch - Expanded<F>::kGroup) / each, near = kPanelBytes / prepared;
    near = near < 4 ? 4 : near > kPanelTokens / kTileTokens ? kPanelTokens / kTileTokens : near;
    return (tiles < near ? tiles : near) * kTileTokens;
}

// Long rows go in parts where a panel would hold less than all tokens: weights are read and expanded for more of them at a time. Outputs hold
// the sums in between.
template <class F>
size_t part_inputs(size_t k, size_t m) { return m <= panel_tokens<F>(k) || k < kPartInputs ? k : kPartInputs; }

inline Vec read(const float* out, size_t columns) { return columns == kBlockRows ? load(out) : load_first(out, columns); }

// Outputs of `count` blocks for the m tokens of a panel, `part` inputs at a time.
template <class F>
void multiply_panel(const Matrix& matrix, const Tokens& x, size_t m, size_t part, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    using E = Expanded<F>;
    uint8_t *expanded = scratch, *prepared = scratch + E::kGroup;
    const size_t whole = m / kTileTokens, rest = m % kTileTokens;
    float* acc = reinterpret_cast<float*>(prepared + part / kCodeGroup * (whole + (rest > 0)) * E::kTile);
    for (size_t from = 0; from < matrix.k; from += part) {
        const size_t here = matrix.k - from < part ? matrix.k - from : part;
        prepare_groups<F>(x, m, from / kCodeGroup, here / kCodeGroup, prepared);
        for (size_t block = first; block < first + count; ++block) {
            const uint8_t *span = matrix.data + block * block_bytes<F>(matrix.k) + from / F::kSpan * kSpanBytes<F>, *tile = prepared;
            const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
            float* out = to.out + block * kBlockRows;
            for (size_t i = 0; i < m; ++i) store(acc + i * kLanes, from == 0 ? zero() : read(out + i * to.stride, columns));
            for (size_t spans = 0; spans < here / F::kSpan; ++spans, span += kSpanBytes<F>) {
                const uint8_t* record = span + F::kHead;
                for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, record += kRecordBytes<F>) {
                    prefetch(record + kPrefetched, kRecordBytes<F>);
                    expand_group<F>(span, record, expanded);
                    for (size_t i = 0; i < whole; ++i, tile += E::kTile) add_group<F, kTileTokens>(expanded, tile, acc + i * kTileTokens * kLanes);
                    if (rest == 0) continue;
                    add_group_of<F, kTileTokens - 1>(rest, expanded, tile, acc + whole * kTileTokens * kLanes);
                    tile += E::kTile;
                }
            }
            for (size_t i = 0; i < m; ++i) write(load(acc + i * kLanes), out + i * to.stride, columns);
        }
    }
}

// Sums of 16 bits hold a whole group of 5-bit products with code - 16 (16 * 16 * 127 < 2^15), where those with codes are widened twice. For three
// tokens and four, products that begin with -16 times their inputs are faster.
template <class F>
constexpr bool kCentredSums = F::Coding::kBits == 5 && F::kZero == 16;

// -16 times the sum of a group's inputs, in pairs as products add them up, of `m` tokens, at most 4.
inline void prepare_starts(const Codes& x, size_t m, size_t groups, uint32_t* starts) {
    for (size_t group = 0; group < groups; ++group)
        for (size_t i = 0; i < m; ++i) {
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.codes + i * x.stride + group * kCodeGroup));
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
            __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
            sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x4e));
            sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0xb1));
            starts[4 * group + i] = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_mullo_epi16(sum, _mm_set1_epi16(-16))));
        }
}

// The integers of a record's products with code - 16.
template <class F>
struct Centred : F {
    template <int M>
    static inline void sums(const uint8_t* record, const Tokens& x, size_t group, Ints* dot) {
        constexpr int kBits = F::Coding::kBits;
        Pairs pairs[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i].a = pairs[i].b = _mm256_set1_epi32(static_cast<int32_t>(x.starts[4 * group + i]));
        RIDGELINE_UNROLL
        for (size_t t = 0; t < kGroupQuads; ++t) {
            const Quad w = F::Coding::quad(record, t);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) pairs[i] = products<kBits>(pairs[i], w, x.codes + group * kCodeGroup + i * x.stride + 4 * t);
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) dot[i] = widen<kBits>(pairs[i]);
    }
};
template <class F>
constexpr bool kOwnSums<Centred<F>> = true;

// Three tokens, or four.
template <class F>
void multiply_centred(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    Tokens all_tokens = tokens(x, matrix.k, 0);
    uint32_t* starts = reinterpret_cast<uint32_t*>(scratch);
    prepare_starts(x, m, all_tokens.groups, starts);
    all_tokens.starts = starts;
    const auto add = m == 3 ? direct_of<Centred<F>, 3, 1> : direct_of<Centred<F>, 4, 1>;
    for (size_t block = first; block < first + count; ++block) {
        Vec sums[4];
        add(matrix.data + block * block_bytes<F>(matrix.k), 0, matrix.k, all_tokens, sums);
        for (size_t i = 0; i < m; ++i) write(sums[i], to.out + i * to.stride + block * kBlockRows, columns_of(matrix, block));
    }
}

// Whether so many tokens are multiplied here, and then their outputs.
template <class F>
bool multiply_groups_tiled(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    if constexpr (kCentredSums<F>)
        if (m > 2 && m <= 4 && matrix.k / kCodeGroup * 16 <= kLinearScratch) return multiply_centred<F>(matrix, x, m, to, first, count, scratch), true;
    if (m <= kDirectTokens<F>) return false;
    const size_t part = part_inputs<F>(matrix.k, m), panel = panel_tokens<F>(part);
    for (size_t from = 0; from < m; from += panel) {
        const Product rows = {to.out + from * to.stride, to.stride};
        multiply_panel<F>(matrix, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, part, rows, first, count, scratch);
    }
    return true;
}

// Not inlined: beside products its masks would take their registers.
template <class F>
__attribute__((noinline)) void expand_apart(const uint8_t* record, uint8_t* to) { expand_group<F>(record, record, to); }

// Sums [tokens, 16] of m tokens with `count` blocks of groups, `bytes` from each other: put(block, first token, tokens, sums). False: rows are
// too long for scratch.
template <class F, class Put>
bool sum_tiled(const uint8_t* data, size_t bytes, size_t count, const Tokens& x, size_t m, uint8_t* scratch, const Put& put) {
    using E = Expanded<F>;
    const size_t panel = panel_tokens<F>(x.groups * kCodeGroup);
    uint8_t *expanded = scratch, *prepared = scratch + E::kGroup;
    for (size_t from = 0; from < m && panel > 0; from += panel) {
        const size_t here = m - from < panel ? m - from : panel, whole = here / kTileTokens, rest = here % kTileTokens;
        float* acc = reinterpret_cast<float*>(prepared + x.groups * (whole + (rest > 0)) * E::kTile);
        prepare_groups<F>(tokens_from(x, from), here, 0, x.groups, prepared);
        for (size_t block = 0; block < count; ++block) {
            const uint8_t *tile = prepared, *record = data + block * bytes;
            memset(acc, 0, here * kLanes * 4);
            for (size_t group = 0; group < x.groups; ++group, record += kRecordBytes<F>) {
                prefetch(record + kPrefetched, kRecordBytes<F>);
                expand_apart<F>(record, expanded);
                for (size_t i = 0; i < whole; ++i, tile += E::kTile) add_group<F, kTileTokens>(expanded, tile, acc + i * kTileTokens * kLanes);
                if (rest == 0) continue;
                add_group_of<F, kTileTokens - 1>(rest, expanded, tile, acc + whole * kTileTokens * kLanes);
                tile += E::kTile;
            }
            put(block, from, here, acc);
        }
    }
    return panel > 0;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
