// Products of many tokens by AMX: a block of 16 rows is expanded once to tiles of bytes, then sixteen tokens at a time meet it there. Tiles sum the
// same integers as vectors do; what follows is theirs, in their order, so that no bit depends on who multiplied.
//
// Of formats of groups a tile has 32 inputs of a record as code - zero, and its sums become fp32 at once. Of formats of spans a factor belongs to
// every 32 or 16 inputs, and tiles know none: what they multiply is (code - zero) factor itself, at most 14 bits with a sign, in two bytes:
// 128 high + low, 0 <= low < 128. Both halves add up over a span, and I = 128 * (sum of high x) + (sum of low x). Of stepped activations x is a code
// times up to 4, two bytes as well: 16 upper + lower, -8 <= lower < 8, which meet the tiles as if they were of two tokens.
//
// While tiles multiply, vectors work on the sums that they gave before. Scratch of a call: two expanded blocks, or a span of each; and for spans 16
// accumulators per token and block, and what each token brings to each span.
#pragma once

#include "linear/avx512/groups.h"
#include "linear/avx512/panels.h"
#include "linear/avx512/spans.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// ---- spans

template <class F>
struct SpanTiles {
    static constexpr size_t kHalves = kScaled<F> ? 2 : 1, kSteps = F::kSpan / kSpanTile;
    static constexpr size_t kTwinWords = kSpanMinima<F> ? kSpanParts<F> / 2 : 0;
    static constexpr size_t kTwins = kSteps * kHalves * kTileBytes, kScale = kTwins + kTwinWords * kQuadBytes;
    static constexpr size_t kMinimum = kScale + kQuadBytes, kZeros = kMinimum;
    static constexpr size_t kBytes = kMinimum + (kSpanMinima<F> || kZerosOfRows<F> ? kQuadBytes : 0);
    // What a token brings to a span: sums of codes as minima want them, in pairs of 16 bits, or their total; its scale.
    static constexpr size_t kWords = kSpanMinima<F> ? kTwinWords : kZerosOfRows<F> ? 1 : 0, kToken = 4 * kWords + 4;
};

// Codes less the zero times the factors, each of which fills both halves of its lane: low bytes, and high ones behind them.
template <class F>
inline void store_products(Quad codes, __m512i by, uint8_t* to) {
    const __m512i zero = _mm512_set1_epi16(F::kZero), low = _mm512_set1_epi16(127), upper = _mm512_set1_epi16(static_cast<short>(0xff00));
    __m512i even = _mm512_andnot_si512(upper, codes.v), odd = _mm512_srli_epi16(codes.v, 8);
    if (F::kZero != 0) even = _mm512_sub_epi16(even, zero), odd = _mm512_sub_epi16(odd, zero);
    even = _mm512_mullo_epi16(even, by), odd = _mm512_mullo_epi16(odd, by);
    _mm512_storeu_si512(to, _mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi16(_mm512_and_si512(odd, low), 8)));
    const __m512i below = _mm512_andnot_si512(upper, _mm512_srai_epi16(even, 7)), above = _mm512_and_si512(upper, _mm512_slli_epi16(odd, 1));
    _mm512_storeu_si512(to + kTileBytes, _mm512_or_si512(below, above));
}

template <class F>
void expand_tiles(const uint8_t* head, uint8_t* to) {
    using T = SpanTiles<F>;
    const uint8_t* record = head + F::kHead;
    for (size_t g = 0; g < kSpanGroups<F>; ++g, record += kRecordBytes<F>) {
        prefetch_record<kRecordBytes<F>, 1>(record);
        uint8_t* tile = to + g / 2 * T::kHalves * kTileBytes + g % 2 * (kTileBytes / 2);
        constexpr size_t kQuads = kGroupQuads / F::kParts;
        RIDGELINE_UNROLL
        for (size_t part = 0; part < F::kParts; ++part) {
            __m512i by = _mm512_setzero_si512();
            if constexpr (kScaled<F>) {
                const Factors of_part = factors<F::kScaleField>(record + F::Coding::kBytes + part * kBlockRows);
                by = side_by_side(of_part, of_part);
            }
            RIDGELINE_UNROLL
            for (size_t t = part * kQuads; t < (part + 1) * kQuads; ++t) {
                const Quad w = F::Coding::quad(record, t);
                if constexpr (kScaled<F>) store_products<F>(w, by, tile + t * kQuadBytes);
                else store_quad(tile + t * kQuadBytes, centred<F>(w));
            }
        }
    }
    store(reinterpret_cast<float*>(to + T::kScale), F::scale(head));
    if constexpr (kSpanMinima<F>) {
        store(reinterpret_cast<float*>(to + T::kMinimum), F::minimum(head));
        for (size_t i = 0; i < T::kTwinWords; ++i) store_ints(to + T::kTwins + i * kQuadBytes, {twins_of<F>(head + F::kHead, i).v});
    }
    if constexpr (kZerosOfRows<F>) store_ints(to + T::kZeros, F::zeros(head));
    written();
}

template <class F>
inline void prepare_token(const Tokens& x, size_t token, size_t group, uint8_t* to) {
    const int32_t* sums = x.sums + (token * x.groups + group) * 2;
    if constexpr (kSpanMinima<F>) {
        Totals<F::kParts> totals;
        totals.gather(sums);
        memcpy(to, totals.words, sizeof totals.words);
    }
    if constexpr (kZerosOfRows<F>) set_word(to, static_cast<uint32_t>(total<F>(sums)));
    Steps steps = {{}, x.scales[token * x.groups + group]};
    if (kSteppable<F> && x.stepped) steps.gather(x.scales + token * x.groups + group);
    memcpy(to + 4 * SpanTiles<F>::kWords, &steps.scale, 4);
}

// The codes of a stepped token as two rows: lower halves, and upper ones `apart` bytes behind them.
inline void split_codes(const Tokens& x, size_t token, size_t k, int8_t* to, size_t apart) {
    for (size_t group = 0; group < x.groups; group += kSteppedGroup / kCodeGroup) {
        Steps steps;
        steps.gather(x.scales + token * x.groups + group);
        for (size_t i = group * kCodeGroup; i < group * kCodeGroup + kSteppedGroup && i < k; ++i) {
            const int code = x.codes[token * x.stride + i] * (1 << steps.by[i / kCodeGroup - group]), upper = (code + 8) >> 4;
            to[i] = static_cast<int8_t>(code - 16 * upper), to[apart + i] = static_cast<int8_t>(upper);
        }
    }
}

// 64 inputs of a span and 16 or 32 tokens: of low bytes onto tiles 0 and 2, of high ones onto 1 and 3.
template <class F, bool kTwo>
RIDGELINE_CODE_TILES_INLINE void multiply_step(const uint8_t* tile, const int8_t* codes, const int8_t* second, size_t stride) {
    constexpr bool kHigh = SpanTiles<F>::kHalves == 2;
    _tile_loadd(4, codes, stride);
    _tile_loadd(6, tile, kQuadBytes);
    _tile_dpbssd(0, 4, 6);
    if constexpr (kHigh) {
        _tile_loadd(7, tile + kTileBytes, kQuadBytes);
        _tile_dpbssd(1, 4, 7);
    }
    if constexpr (kTwo) {
        _tile_loadd(5, second, stride);
        _tile_dpbssd(2, 5, 6);
        if constexpr (kHigh) _tile_dpbssd(3, 5, 7);
    }
}
// [4, 16, 16]: low and high of each tile of tokens.
template <class F, bool kTwo>
RIDGELINE_CODE_TILES_INLINE void store_sums(int32_t* sums) {
    constexpr bool kHigh = SpanTiles<F>::kHalves == 2;
    constexpr size_t kEach = kTileTokens * kLanes;
    _tile_stored(0, sums, kQuadBytes);
    if constexpr (kHigh) _tile_stored(1, sums + kEach, kQuadBytes);
    if constexpr (kTwo) _tile_stored(2, sums + 2 * kEach, kQuadBytes);
    if constexpr (kTwo && kHigh) _tile_stored(3, sums + 3 * kEach, kQuadBytes);
}

// The integers of a token and a span from what tiles gave: low sums, and high ones behind them.
template <class F>
inline Ints joined(const int32_t* sums) {
    const Ints low = load_ints(sums);
    if constexpr (SpanTiles<F>::kHalves == 1) return low;
    else return low + Ints{_mm512_slli_epi32(load_ints(sums + kTileTokens * kLanes).v, 7)};
}

// The sums of a span onto the accumulators [kCount, 16] of some tokens of a tile, from the first of them. prepared: by `prepare_token`. Those of
// the upper halves of kStepped codes stand where a second tile's would.
template <class F, size_t kCount, bool kStepped>
__attribute__((always_inline)) inline void add_span_sums(const uint8_t* span, const int32_t* sums, const uint8_t* prepared, float* acc) {
    using T = SpanTiles<F>;
    const Vec scale = load(reinterpret_cast<const float*>(span + T::kScale));
    Vec minimum = scale;
    Ints twins[T::kTwinWords + 1], zeros = ints(0);
    if constexpr (kSpanMinima<F>) minimum = load(reinterpret_cast<const float*>(span + T::kMinimum));
    if constexpr (kZerosOfRows<F>) zeros = load_ints(span + T::kZeros);
    RIDGELINE_UNROLL
    for (size_t pair = 0; pair < T::kTwinWords; ++pair) twins[pair] = load_ints(span + T::kTwins + pair * kQuadBytes);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kCount; ++i, acc += kLanes, prepared += T::kToken) {
        Ints dot = joined<F>(sums + i * kLanes);
        if constexpr (kStepped) dot = dot + Ints{_mm512_slli_epi32(joined<F>(sums + (2 * kTileTokens + i) * kLanes).v, 4)};
        if constexpr (kZerosOfRows<F>) dot = dot - zeros * ints(static_cast<int32_t>(word(prepared)));
        float x_scale;
        memcpy(&x_scale, prepared + 4 * T::kWords, sizeof x_scale);
        Vec sum = add_span(load(acc), dot, scale, x_scale);
        if constexpr (kSpanMinima<F>) {
            Ints beside = ints(0);
            RIDGELINE_UNROLL
            for (size_t pair = 0; pair < T::kTwinWords; ++pair)
                beside.v = _mm512_dpwssd_epi32(beside.v, twins[pair].v, ints(static_cast<int32_t>(word(prepared + 4 * pair))).v);
            sum.v = _mm512_fnmadd_ps(floats(beside).v, (minimum * all(x_scale)).v, sum.v);
        }
        store(acc, sum);
    }
}

// Whose sums have been stored and wait for vectors.
struct Pending {
    const uint8_t *span, *prepared;
    float* acc;
};

// Expanded spans of `blocks` blocks onto the accumulators [blocks, tiles, 16, 16] of m tokens: two tiles at a time with each block, and in turn
// with the steps of theirs parts of what the two before them gave. kStepped: the two are halves of one tile's codes, the upper ones `upper` bytes
// behind the lower.
template <class F, bool kStepped>
RIDGELINE_CODE_TILES void add_span_tiles(const uint8_t* spans, size_t blocks, const int8_t* codes, size_t stride, size_t upper, size_t m,
                                         const uint8_t* prepared, float* acc) {
    using T = SpanTiles<F>;
    constexpr size_t kSums = kTileTokens * kLanes, kTogether = kStepped ? kTileTokens : 2 * kTileTokens, kPart = kTogether / T::kSteps;
    alignas(64) int32_t sums[4 * kSums];
    Pending before = {nullptr, nullptr, nullptr};
    const auto add = [&](size_t part) __attribute__((always_inline)) {
        const size_t first = part * kPart;
        add_span_sums<F, kPart, kStepped>(before.span, sums + first / kTileTokens * 2 * kSums + first % kTileTokens * kLanes,
                                          before.prepared + first * T::kToken, before.acc + first * kLanes);
    };
    const size_t tiles = tiles_of(m), pairs = kStepped ? tiles : tiles / 2;
    for (size_t pair = 0; pair < pairs; ++pair)
        for (size_t block = 0; block < blocks; ++block) {
            const uint8_t* span = spans + block * T::kBytes;
            const int8_t* one = codes + (kStepped ? first_of(pair, m) : pair * kTogether) * stride;
            const int8_t* two = kStepped ? one + upper : codes + first_of(2 * pair + 1, m) * stride;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
#pragma GCC unroll 4
            for (size_t step = 0; step < T::kSteps; ++step) {
                multiply_step<F, true>(span + step * T::kHalves * kTileBytes, one + step * kSpanTile, two + step * kSpanTile, stride);
                if (before.span != nullptr) add(step);
            }
            store_sums<F, true>(sums);
            before = {span, prepared + pair * kTogether * T::kToken, acc + (block * tiles * kTileTokens + pair * kTogether) * kLanes};
        }
    for (size_t part = 0; part < T::kSteps && pairs > 0; ++part) add(part);
    for (size_t block = 0; block < blocks && !kStepped && tiles % 2 == 1; ++block) {
        const uint8_t* span = spans + block * T::kBytes;
        const int8_t* one = codes + first_of(tiles - 1, m) * stride;
        _tile_zero(0);
        _tile_zero(1);
        for (size_t step = 0; step < T::kSteps; ++step)
            multiply_step<F, false>(span + step * T::kHalves * kTileBytes, one + step * kSpanTile, one, stride);
        store_sums<F, false>(sums);
        before = {span, prepared + pairs * kTogether * T::kToken, acc + (block * tiles * kTileTokens + pairs * kTogether) * kLanes};
        for (size_t part = 0; part < T::kSteps / 2; ++part) add(part);
    }
}

// ---- both

constexpr size_t kTileBlocks = 2;        // that tokens meet while they are near
inline size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of scratch for `m` tokens of `k` inputs.
template <class F>
size_t tile_scratch(size_t k, size_t m, bool stepped) {
    const size_t room = tiles_of(m) * kTileTokens;
    if constexpr (F::kIntegerSpans)
        return kTileBlocks * (SpanTiles<F>::kBytes + room * kQuadBytes) + k / F::kSpan * lines(room * SpanTiles<F>::kToken) + (stepped ? 2 * m * k : 0);
    else return k / kCodeGroup * (kTileBlocks * GroupTile<F>::kBytes + tiles_of(m) * kGroupTokens<F>);
}

RIDGELINE_CODE_TILES inline void begin_code_tiles(const TileShapes& shapes) { _tile_loadconfig(&shapes); }
RIDGELINE_CODE_TILES inline void end_code_tiles() { _tile_release(); }

// Outputs of `count` blocks for m tokens.
template <class F>
void multiply_spans_tiled(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    using T = SpanTiles<F>;
    const size_t spans = matrix.k / F::kSpan, tiles = tiles_of(m), room = tiles * kTileTokens, prepared_bytes = lines(room * T::kToken);
    float* acc = reinterpret_cast<float*>(scratch + kTileBlocks * T::kBytes);
    uint8_t* prepared = reinterpret_cast<uint8_t*>(acc + kTileBlocks * room * kLanes);
    for (size_t span = 0; span < spans; ++span)
        for (size_t i = 0; i < room; ++i)
            prepare_token<F>(x, first_of(i / kTileTokens, m) + i % kTileTokens, span * kSpanGroups<F>, prepared + span * prepared_bytes + i * T::kToken);
    int8_t* split = reinterpret_cast<int8_t*>(prepared + spans * prepared_bytes);
    for (size_t i = 0; i < m && x.stepped; ++i) split_codes(x, i, matrix.k, split + i * matrix.k, m * matrix.k);
    written();
    for (size_t block = first; block < first + count; block += kTileBlocks) {
        const size_t blocks = first + count - block < kTileBlocks ? first + count - block : kTileBlocks;
        const uint8_t* packed = matrix.data + block * block_bytes<F>(matrix.k);
        memset(acc, 0, blocks * room * kQuadBytes);
        for (size_t span = 0; span < spans; ++span, packed += kSpanBytes<F>) {
            for (size_t i = 0; i < blocks; ++i) expand_tiles<F>(packed + i * block_bytes<F>(matrix.k), scratch + i * T::kBytes);
            const uint8_t* tokens_of_span = prepared + span * prepared_bytes;
            if (kSteppable<F> && x.stepped)
                add_span_tiles<F, kSteppable<F>>(scratch, blocks, split + span * F::kSpan, matrix.k, m * matrix.k, m, tokens_of_span, acc);
            else add_span_tiles<F, false>(scratch, blocks, x.codes + span * F::kSpan, x.stride, 0, m, tokens_of_span, acc);
        }
        for (size_t i = 0; i < blocks; ++i)
            for (size_t t = 0; t < room; ++t)
                write(load(acc + (i * room + t) * kLanes), to.out + (first_of(t / kTileTokens, m) + t % kTileTokens) * to.stride + (block + i) * kBlockRows,
                      columns_of(matrix, block + i));
    }
}

template <class F>
void multiply_groups_tiled(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    const size_t bytes = x.groups * GroupTile<F>::kBytes, prepared_bytes = x.groups * kGroupTokens<F>;
    uint8_t* prepared = scratch + kTileBlocks * bytes;
    for (size_t tile = 0; tile < tiles_of(m); ++tile) prepare_groups<F>(tokens_from(x, first_of(tile, m)), prepared + tile * prepared_bytes);
    for (size_t block = first; block < first + count; block += kTileBlocks) {
        const size_t blocks = first + count - block < kTileBlocks ? first + count - block : kTileBlocks;
        for (size_t i = 0; i < blocks; ++i) expand_groups<F>(matrix.data + (block + i) * block_bytes<F>(matrix.k), matrix.k, scratch + i * bytes);
        for (size_t tile = 0; tile < tiles_of(m); ++tile)
            for (size_t i = 0; i < blocks; ++i) {
                const size_t token = first_of(tile, m), column = (block + i) * kBlockRows;
                multiply_group_tiles<F>(scratch + i * bytes, x.codes + token * x.stride, x.stride, x.groups, prepared + tile * prepared_bytes,
                                        to.out + token * to.stride + column, to.stride, columns_of(matrix, block + i));
            }
    }
}

// Fewer tokens are faster by vectors, and those of whose tiles more than a third would stand twice.
template <class F>
constexpr size_t kLeastTiled = F::Coding::kBits == 8 ? 2 * kTileTokens : kTileTokens;
template <class F>
bool faster_tiled(size_t m) { return m >= kLeastTiled<F> && 3 * m >= 2 * kTileTokens * tiles_of(m); }

// Whether so many tokens are multiplied here, and then their outputs.
template <class F>
bool multiply_tiled(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    if (!has_tiles()) {
        if constexpr (F::kIntegerSpans) return multiply_spans_by_vectors<F>(matrix, x, m, to, first, count, scratch);
        else return multiply_panels<F>(matrix, x, m, to, first, count, scratch);
    }
    size_t panel = kTilePanel;
    while (panel > kTileTokens && tile_scratch<F>(matrix.k, panel, x.stepped) > kLinearScratch) panel /= 2;
    if (!faster_tiled<F>(m) || tile_scratch<F>(matrix.k, panel, x.stepped) > kLinearScratch) return false;
    begin_code_tiles(F::kIntegerSpans ? kTileShapes : kGroupShapes);
    for (size_t from = 0; from < m; from += panel) {
        const size_t token = m - from < kTileTokens ? m - kTileTokens : from, here = m - token < panel ? m - token : panel;
        const Product part = {to.out + token * to.stride, to.stride};
        if constexpr (F::kIntegerSpans) multiply_spans_tiled<F>(matrix, tokens(x, matrix.k, token), here, part, first, count, scratch);
        else multiply_groups_tiled<F>(matrix, tokens(x, matrix.k, token), here, part, first, count, scratch);
    }
    end_code_tiles();
    return true;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
