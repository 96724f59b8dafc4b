// Products of many tokens with formats of spans by vectors: the factors of a span of 32 rows are expanded once to integers, then all tokens of a
// panel meet it, a tile of them at a time. Codes of one plane are taken apart for each tile, which runs beside products; what is made of several
// is expanded once with the factors.
//
// A tile is six tokens by two blocks of 16 rows. Each word of a token that is read serves both blocks, and each quad of weights all tokens: two
// loads in three go with three products in four. What the products of a part begin with is the centre's share of them, -zero * (sum of codes). For
// stepped activations factors also stand there times 2 and 4: a token takes those of its step.
//
// Scratch of a call: what is expanded of a span; 32 accumulators per token; and, prepared once per panel, what each token brings to each span.
#pragma once

#include <type_traits>

#include "linear/avx512/groups.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr int kVectorTokens = 6;         // of a tile
constexpr size_t kVectorBlocks = 2;      // of a tile
template <class F>
constexpr bool kExpands = F::Coding::kBits < 4 || !std::is_same_v<typename F::Coding, Codings<F::Coding::kBits>>;
template <class F>
constexpr size_t kLeastVectorTokens = kExpands<F> ? 13 : 9;          // fewer are faster straight from the records
constexpr size_t kVectorPanelBytes = 512 << 10;      // of codes that stay in the second-level cache

// Of one format: places in an expanded span of a block, and in what a token brings to a span.
template <class F>
struct VectorPlaces {
    static constexpr size_t kFactors = kScaled<F> ? F::kParts * kQuadBytes : 0;          // of one step
    static constexpr size_t kCodes = kExpands<F> ? kGroupQuads * kQuadBytes : 0;
    static constexpr size_t kGroup = kCodes + kFactors * (kSteppable<F> ? kMostSteps + 1 : 1);
    static constexpr size_t kTwinWords = kSpanMinima<F> ? kSpanParts<F> / 2 : kZerosOfRows<F> ? 1 : 0;
    static constexpr size_t kTwins = kSpanGroups<F> * kGroup, kScale = kTwins + kTwinWords * kQuadBytes;
    static constexpr size_t kSpan = kScale + (kSpanMinima<F> ? 2 : 1) * kQuadBytes;
    // Words of a token: its scale; sums of codes as twins want them, or their total; what parts begin with; where the factors of its groups are.
    static constexpr size_t kTotals = 4, kStarts = kTotals + 4 * kTwinWords;
    static constexpr size_t kSteps = kStarts + (kCentredParts<F> ? 4 * kSpanParts<F> : 0);
    static constexpr size_t kToken = kSteps + (kSteppable<F> ? 4 * kSpanGroups<F> : 0);
};

// One record of a block into the expanded span.
template <class F>
__attribute__((always_inline)) inline void expand_vectors(const uint8_t* record, bool stepped, uint8_t* to) {
    using P = VectorPlaces<F>;
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads && kExpands<F>; ++t) store_quad(to + t * kQuadBytes, F::Coding::quad(record, t));
    RIDGELINE_UNROLL
    for (size_t part = 0; part < F::kParts && kScaled<F>; ++part) {
        const Factors by = factors<F::kScaleField>(record + F::Coding::kBytes + part * kBlockRows);
        uint8_t* place = to + P::kCodes + part * kQuadBytes;
        store_ints(place, by);
        for (int step = 1; step <= kMostSteps && kSteppable<F> && stepped; ++step)
            store_ints(place + static_cast<size_t>(step) * P::kFactors, {_mm512_slli_epi32(by.v, static_cast<unsigned>(step))});
    }
}

template <class F>
inline void expand_vector_span(const uint8_t* head, bool stepped, uint8_t* to) {
    using P = VectorPlaces<F>;
    const uint8_t* records = head + F::kHead;
    for (size_t g = 0; g < kSpanGroups<F>; ++g) expand_vectors<F>(records + g * kRecordBytes<F>, stepped, to + g * P::kGroup);
    if constexpr (kZerosOfRows<F>) store_ints(to + P::kTwins, F::zeros(head) + ints(F::kZero));
    if constexpr (kSpanMinima<F>)
        for (size_t i = 0; i < P::kTwinWords; ++i) store_ints(to + P::kTwins + i * kQuadBytes, {twins_of<F>(records, i).v});
    float* floats = reinterpret_cast<float*>(to + P::kScale);
    store(floats, F::scale(head));
    if constexpr (kSpanMinima<F>) store(floats + kLanes, F::minimum(head));
}

// What a token brings to the span from group `group` on.
template <class F>
inline void prepare_vector_token(const Tokens& x, size_t token, size_t group, uint8_t* to) {
    using P = VectorPlaces<F>;
    const int32_t* sums = x.sums + (token * x.groups + group) * 2;
    Steps steps = {{}, x.scales[token * x.groups + group]};
    if (kSteppable<F> && x.stepped) steps.gather(x.scales + token * x.groups + group);
    memcpy(to, &steps.scale, 4);
    if constexpr (kZerosOfRows<F>) set_word(to + P::kTotals, static_cast<uint32_t>(-total<F>(sums)));
    if constexpr (kSpanMinima<F>) {
        Totals<F::kParts> totals;
        totals.gather(sums);
        memcpy(to + P::kTotals, totals.words, sizeof totals.words);
    }
    for (size_t part = 0; part < kSpanParts<F> && kCentredParts<F>; ++part) {
        const int32_t sum = F::kParts == 2 ? sums[part] : sums[2 * part] + sums[2 * part + 1];
        set_word(to + P::kStarts + 4 * part, static_cast<uint32_t>(-F::kZero * (sum >> steps.by[part / F::kParts])));
    }
    for (size_t g = 0; g < kSpanGroups<F> && kSteppable<F>; ++g) set_word(to + P::kSteps + 4 * g, steps.by[g] * static_cast<uint32_t>(P::kFactors));
}

// A word of a token into a register: the compiler would rather read it from memory for each block.
inline __m512i broadcast_once(const void* p) {
    __m512i x = _mm512_set1_epi32(static_cast<int32_t>(word(p)));
    __asm__("" : "+v"(x));
    return x;
}

// The records of a span of some blocks, `apart` bytes from each other; and what comes from memory next, so many lines of each block with a tile,
// some in front of each group, that memory is never idle nor crowded.
struct Records {
    const uint8_t *at, *next;
    size_t apart, lines;
    void fetch(size_t blocks, size_t group, size_t groups) const {
        for (size_t line = group * lines / groups; line < (group + 1) * lines / groups; ++line)
            for (size_t i = 0; i < blocks; ++i) __builtin_prefetch(next + i * apart + line * 64, 0, 2);
    }
};

// Products of a group of kBlocks blocks with M tokens onto their integers [kBlocks, M].
template <class F, int M, int kBlocks, bool kStepped>
__attribute__((always_inline)) inline void add_vector_group(const Records& records, const uint8_t* group, size_t g, const int8_t* codes,
                                                            size_t stride, const uint8_t* prepared, Ints* sums) {
    using P = VectorPlaces<F>;
    constexpr size_t kQuads = kGroupQuads / F::kParts;
    RIDGELINE_UNROLL
    for (size_t part = 0; part < F::kParts; ++part) {
        Ints own[kBlocks * M], *dots = kScaled<F> ? own : sums;
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks * M && kScaled<F>; ++i) {
            if constexpr (!kCentredParts<F>) own[i] = ints(0);
            else own[i] = ints(static_cast<int32_t>(word(prepared + i % M * P::kToken + P::kStarts + 4 * (g * F::kParts + part))));
        }
        RIDGELINE_UNROLL
        for (size_t t = part * kQuads; t < (part + 1) * kQuads; ++t) {
            __m512i w[kBlocks];
            RIDGELINE_UNROLL
            for (size_t block = 0; block < kBlocks; ++block) {
                w[block] = kExpands<F> ? load_quad(group + block * P::kSpan + t * kQuadBytes).v
                                       : F::Coding::quad(records.at + block * records.apart + g * kRecordBytes<F>, t).v;
                __asm__("" : "+v"(w[block]));
            }
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) {
                const __m512i x = broadcast_once(codes + i * stride + 4 * t);
                RIDGELINE_UNROLL
                for (size_t block = 0; block < kBlocks; ++block) dots[block * M + i].v = _mm512_dpbusd_epi32(dots[block * M + i].v, w[block], x);
            }
        }
        if constexpr (kScaled<F>) {
            const uint8_t* by = group + P::kCodes + part * kQuadBytes;
            RIDGELINE_UNROLL
            for (size_t block = 0; block < kBlocks; ++block)
                RIDGELINE_UNROLL
                for (size_t i = 0; i < M; ++i) {
                    const size_t step = kStepped ? word(prepared + i * P::kToken + P::kSteps + 4 * g) : 0;
                    sums[block * M + i] = sums[block * M + i] + dots[block * M + i] * load_ints(by + block * P::kSpan + step);
                }
        }
    }
}

// One span of kBlocks blocks onto the accumulators [kBlocks, apart, 16] of M tokens.
template <class F, int M, int kBlocks, bool kStepped>
__attribute__((noinline)) void add_vector_span(const Records& records, const uint8_t* span, const int8_t* codes, size_t stride,
                                               const uint8_t* prepared, float* acc, size_t apart) {
    using P = VectorPlaces<F>;
    Ints sums[kBlocks * M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kBlocks * M; ++i) sums[i] = ints(0);
#pragma GCC unroll 1
    for (size_t g = 0; g < kSpanGroups<F>; ++g) {
        records.fetch(kBlocks, g, kSpanGroups<F>);
        add_vector_group<F, M, kBlocks, kStepped>(records, span + g * P::kGroup, g, codes + g * kCodeGroup, stride, prepared, sums);
    }
    const uint8_t* scales = span + P::kScale;
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i, prepared += P::kToken, acc += kLanes) {
        Ints beside[kBlocks];
        RIDGELINE_UNROLL
        for (size_t block = 0; block < kBlocks; ++block) beside[block] = ints(0);
        RIDGELINE_UNROLL
        for (size_t pair = 0; pair < P::kTwinWords && kSpanMinima<F>; ++pair) {
            const __m512i total = broadcast_once(prepared + P::kTotals + 4 * pair);
            RIDGELINE_UNROLL
            for (size_t block = 0; block < kBlocks; ++block)
                beside[block].v = _mm512_dpwssd_epi32(beside[block].v, total, load_ints(span + block * P::kSpan + P::kTwins + pair * kQuadBytes).v);
        }
        float x_scale;
        memcpy(&x_scale, prepared, 4);
        RIDGELINE_UNROLL
        for (size_t block = 0; block < kBlocks; ++block) {
            const float* scale = reinterpret_cast<const float*>(scales + block * P::kSpan);
            Ints dot = sums[block * M + i];
            if constexpr (kZerosOfRows<F>)
                dot = dot + load_ints(span + block * P::kSpan + P::kTwins) * ints(static_cast<int32_t>(word(prepared + P::kTotals)));
            Vec sum = add_span(load(acc + block * apart * kLanes), dot, load(scale), x_scale);
            if constexpr (kSpanMinima<F>) sum = add_minima(sum, beside[block], load(scale + kLanes), x_scale);
            store(acc + block * apart * kLanes, sum);
        }
    }
}

// The same for `m` tokens, at most M.
template <class F, int M, int kBlocks, bool kStepped>
inline void add_vector_tile(int m, const Records& records, const uint8_t* span, const int8_t* codes, size_t stride, const uint8_t* prepared,
                            float* acc, size_t apart) {
    if constexpr (M > 1)
        if (m < M) return add_vector_tile<F, M - 1, kBlocks, kStepped>(m, records, span, codes, stride, prepared, acc, apart);
    add_vector_span<F, M, kBlocks, kStepped>(records, span, codes, stride, prepared, acc, apart);
}

// Outputs of kBlocks blocks for the m tokens of a panel.
template <class F, int kBlocks, bool kStepped>
void multiply_vector_blocks(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t block, const uint8_t* prepared, float* acc,
                            uint8_t* expanded) {
    using P = VectorPlaces<F>;
    const size_t bytes = block_bytes<F>(matrix.k), tiles = (m + kVectorTokens - 1) / kVectorTokens;
    const size_t lines = (kSpanBytes<F> + 64 * tiles - 1) / (64 * tiles);
    const uint8_t* packed = matrix.data + block * bytes;
    memset(acc, 0, kBlocks * m * kLanes * sizeof(float));
    for (size_t group = 0; group < x.groups; group += kSpanGroups<F>, packed += kSpanBytes<F>, prepared += m * P::kToken) {
        for (size_t i = 0; i < kBlocks; ++i) expand_vector_span<F>(packed + i * bytes, kStepped, expanded + i * P::kSpan);
        for (size_t tile = 0, from = 0; tile < tiles; ++tile) {
            const size_t here = (m - from) / (tiles - tile);
            const Records records = {packed + F::kHead, packed + kBlocks * bytes + tile * lines * 64, bytes, lines};
            add_vector_tile<F, kVectorTokens, kBlocks, kStepped>(static_cast<int>(here), records, expanded,
                                                                 x.codes + from * x.stride + group * kCodeGroup, x.stride,
                                                                 prepared + from * P::kToken, acc + from * kLanes, m);
            from += here;
        }
    }
    for (size_t i = 0; i < kBlocks; ++i)
        for (size_t t = 0; t < m; ++t)
            write(load(acc + (i * m + t) * kLanes), to.out + t * to.stride + (block + i) * kBlockRows, columns_of(matrix, block + i));
}

// Outputs of `count` blocks for the m tokens of a panel.
template <class F, bool kStepped>
void multiply_vector_panel(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    using P = VectorPlaces<F>;
    float* acc = reinterpret_cast<float*>(scratch + kVectorBlocks * P::kSpan);
    uint8_t* prepared = reinterpret_cast<uint8_t*>(acc + kVectorBlocks * m * kLanes);
    for (size_t group = 0, at = 0; group < x.groups; group += kSpanGroups<F>)
        for (size_t i = 0; i < m; ++i, at += P::kToken) prepare_vector_token<F>(x, i, group, prepared + at);
    size_t block = first;
    for (; block + kVectorBlocks <= first + count; block += kVectorBlocks)
        multiply_vector_blocks<F, kVectorBlocks, kStepped>(matrix, x, m, to, block, prepared, acc, scratch);
    for (; block < first + count; ++block) multiply_vector_blocks<F, 1, kStepped>(matrix, x, m, to, block, prepared, acc, scratch);
}

// How many tokens go through scratch at a time: 0 where a row is too long for it.
template <class F>
size_t vector_panel(size_t k) {
    using P = VectorPlaces<F>;
    const size_t each = kVectorBlocks * kQuadBytes + k / F::kSpan * P::kToken, fit = (kLinearScratch - kVectorBlocks * P::kSpan) / each;
    const size_t near = kVectorPanelBytes / k / kVectorTokens * kVectorTokens;
    return near < kVectorTokens ? fit < kVectorTokens ? 0 : kVectorTokens : near < fit ? near : fit;
}

// Whether so many tokens are multiplied here, and then their outputs.
template <class F>
bool multiply_spans_by_vectors(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    const size_t panel = vector_panel<F>(matrix.k);
    if (m < kLeastVectorTokens<F> || panel == 0) return false;
    const size_t pieces = (m + panel - 1) / panel, together = (m + pieces - 1) / pieces;
    for (size_t from = 0; from < m; from += together) {
        const size_t here = m - from < together ? m - from : together;
        const Product part = {to.out + from * to.stride, to.stride};
        if (kSteppable<F> && x.stepped) multiply_vector_panel<F, kSteppable<F>>(matrix, tokens(x, matrix.k, from), here, part, first, count, scratch);
        else multiply_vector_panel<F, false>(matrix, tokens(x, matrix.k, from), here, part, first, count, scratch);
    }
    return true;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
