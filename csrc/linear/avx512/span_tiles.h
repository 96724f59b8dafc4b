// Tiles of formats of spans: linear/avx512/tiles.h says what they are.
#pragma once

#include "linear/avx512/groups.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// How a weight's integer, (code - zero) times its factor, is told in bytes: as 2^kShift high + low, where low has no sign. The bits of a factor
// without a sign are parted, if there are too many: a code times some of them is a byte, so that one product of 16 bits makes two. Others are
// parted behind the product.
template <class F>
struct Halves {
    static constexpr bool kParted = kScaled<F> && F::kZero == 0 && F::kScaleField != Field::kSigned;
    static constexpr int kFactorBits = F::kScaleField == Field::kByte ? 6 : 4, kShift = kParted ? 3 : 8;
    static constexpr size_t kCount = !kScaled<F> || (kParted && F::Coding::kBits + kFactorBits <= 8) ? 1 : 2;
    static constexpr bool kLowSigned = !kScaled<F>, kHighSigned = !kParted;
    static_assert(!kParted || kCount == 1 || (F::Coding::kBits + kShift <= 8 && kFactorBits <= 2 * kShift), "a part of a product is more than a byte");
};

template <class F>
struct SpanTiles {
    static constexpr size_t kHalves = Halves<F>::kCount, kSteps = F::kSpan / kSpanTile;
    static constexpr size_t kTwinWords = kSpanMinima<F> ? kSpanParts<F> / 2 : 0;
    static constexpr size_t kStepBytes = kHalves * kTileBytes, kWeights = kSteps * kStepBytes;
    // What rows bring to the sums of a span: pairs of minima, a scale, a minimum of minima or zeros.
    static constexpr size_t kScale = kTwinWords * kQuadBytes, kMinimum = kScale + kQuadBytes, kZeros = kMinimum;
    static constexpr size_t kHead = kMinimum + (kSpanMinima<F> || kZerosOfRows<F> ? kQuadBytes : 0);
    // What a token brings to a span: sums of codes as minima want them, in pairs of 16 bits, or their total; its scale.
    static constexpr size_t kWords = kSpanMinima<F> ? kTwinWords : kZerosOfRows<F> ? 1 : 0, kToken = 4 * kWords + 4;
};

// The factors of 16 rows, each in both halves of its lane: of parted ones the lower bits, and the upper ones.
template <class F>
struct TileFactors {
    __m512i low, high;
    explicit TileFactors(const uint8_t* scales) {
        const Factors all = factors<F::kScaleField>(scales);
        low = high = side_by_side(all, all);
        if constexpr (Halves<F>::kParted && Halves<F>::kCount == 2)
            low = _mm512_and_si512(low, _mm512_set1_epi16((1 << Halves<F>::kShift) - 1)), high = _mm512_srli_epi16(high, Halves<F>::kShift);
    }
};

template <class F>
inline void store_products(Quad codes, const TileFactors<F>& by, uint8_t* to) {
    if constexpr (Halves<F>::kParted) {
        _mm512_storeu_si512(to, _mm512_mullo_epi16(codes.v, by.low));
        if constexpr (Halves<F>::kCount == 2) _mm512_storeu_si512(to + kTileBytes, _mm512_mullo_epi16(codes.v, by.high));
    } else {
        constexpr __mmask64 kLower = 0x5555555555555555u;        // bytes of each product
        const __m512i whole = centred<F>(codes).v;
        const __m512i even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(whole, 8), 8), by.low);
        const __m512i odd = _mm512_mullo_epi16(_mm512_srai_epi16(whole, 8), by.low);
        _mm512_storeu_si512(to, _mm512_mask_mov_epi8(_mm512_slli_epi16(odd, 8), kLower, even));
        _mm512_storeu_si512(to + kTileBytes, _mm512_mask_mov_epi8(odd, kLower, _mm512_srli_epi16(even, 8)));
    }
}

constexpr size_t kTileNear = 1024;       // bytes to what is fetched into the first-level cache

// 64 inputs of a span of a block; what lies `ahead` bytes behind them is fetched into the second-level cache.
template <class F>
__attribute__((always_inline)) inline void expand_step(const uint8_t* head, size_t step, size_t ahead, uint8_t* to) {
    constexpr size_t kQuads = kGroupQuads / F::kParts;
    const uint8_t* record = head + F::kHead + step * 2 * kRecordBytes<F>;
    uint8_t* tile = to + step * SpanTiles<F>::kStepBytes;
    for (size_t line = 0; line < 2 * kRecordBytes<F>; line += 64) __builtin_prefetch(record + ahead + line, 0, 2);
    for (size_t line = 0; line < 2 * kRecordBytes<F>; line += 64) __builtin_prefetch(record + kTileNear + line, 0, 3);
    for (size_t g = 0; g < 2; ++g, record += kRecordBytes<F>, tile += kTileBytes / 2)
        RIDGELINE_UNROLL
        for (size_t part = 0; part < F::kParts; ++part) {
            if constexpr (kScaled<F>) {
                const TileFactors<F> by(record + F::Coding::kBytes + part * kBlockRows);
                RIDGELINE_UNROLL
                for (size_t t = part * kQuads; t < (part + 1) * kQuads; ++t) store_products<F>(F::Coding::quad(record, t), by, tile + t * kQuadBytes);
            } else {
                RIDGELINE_UNROLL
                for (size_t t = part * kQuads; t < (part + 1) * kQuads; ++t)
                    store_quad(tile + t * kQuadBytes, centred<F>(F::Coding::quad(record, t)));
            }
        }
}

template <class F>
inline void expand_head(const uint8_t* head, uint8_t* to) {
    using T = SpanTiles<F>;
    store(reinterpret_cast<float*>(to + T::kScale), F::scale(head));
    if constexpr (kSpanMinima<F>) {
        store(reinterpret_cast<float*>(to + T::kMinimum), F::minimum(head));
        for (size_t i = 0; i < T::kTwinWords; ++i) store_ints(to + i * kQuadBytes, {twins_of<F>(head + F::kHead, i).v});
    }
    if constexpr (kZerosOfRows<F>) store_ints(to + T::kZeros, F::zeros(head));
}

// The next spans of one or two blocks, a step at a time: each takes the place of the one that tiles have just multiplied, and has come to the
// first-level cache when its turn is there. What rows bring to sums is kept for three turns: those of the one before are still added up.
template <class F>
struct Expansion {
    const uint8_t* span = nullptr;
    size_t apart = 0, blocks = 0, ahead = 0;
    uint8_t *weights = nullptr, *heads = nullptr;        // [blocks]
    size_t step = SpanTiles<F>::kSteps;
    __attribute__((always_inline)) void advance() {
        using T = SpanTiles<F>;
        if (step == T::kSteps) return;
        written();                       // tiles have read what stood there
        for (size_t i = 0; i < blocks; ++i) {
            expand_step<F>(span + i * apart, step, ahead, weights + i * T::kWeights);
            if (step == 0) expand_head<F>(span + i * apart, heads + i * T::kHead);
        }
        ++step;
    }
    void finish() {
        while (step < SpanTiles<F>::kSteps) advance();
    }
};

template <class F>
inline void prepare_token(const int32_t* sums, float scale, uint8_t* to) {
    if constexpr (kSpanMinima<F>) {
        Totals<F::kParts> totals;
        totals.gather(sums);
        memcpy(to, totals.words, sizeof totals.words);
    }
    if constexpr (kZerosOfRows<F>) set_word(to, static_cast<uint32_t>(total<F>(sums)));
    memcpy(to + 4 * SpanTiles<F>::kWords, &scale, sizeof scale);
}

// The codes of a token in a span onto row `to` of tiles: [steps, 16, 64].
template <class F>
inline void place_codes(const int8_t* codes, uint8_t* to) {
    RIDGELINE_UNROLL
    for (size_t step = 0; step < SpanTiles<F>::kSteps; ++step) _mm512_storeu_si512(to + step * kTileBytes, _mm512_loadu_si512(codes + step * kSpanTile));
}

// The same of a stepped token as 4 upper + lower, the lower parts in front: a code times two is 4 times its half and 2 times what that leaves.
template <class F>
inline void place_stepped_codes(const int8_t* codes, const Steps& steps, uint8_t* to) {
    constexpr size_t kUpper = SpanTiles<F>::kSteps * kTileBytes;
    constexpr uint64_t kGroups[4] = {0, 0xffffffffu, 0xffffffff00000000u, ~uint64_t{0}};
    const __m512i none = _mm512_setzero_si512(), one = _mm512_set1_epi8(1), seven = _mm512_set1_epi8(127), sign = _mm512_set1_epi8(64);
    uint32_t twice = 0, four = 0;        // a bit for every group
    for (uint32_t g = 0; g < kSteppedGroup / kCodeGroup; ++g) twice |= (steps.by[g] & 1) << g, four |= steps.by[g] >> 1 << g;
    RIDGELINE_UNROLL
    for (size_t step = 0; step < SpanTiles<F>::kSteps; ++step) {
        const __mmask64 doubled = kGroups[twice >> 2 * step & 3], quadrupled = kGroups[four >> 2 * step & 3];
        const __m512i code = _mm512_loadu_si512(codes + step * kSpanTile), odd = _mm512_and_si512(code, one);
        // A byte shifted to the right has its sign from the bit below.
        const __m512i halved = _mm512_sub_epi8(_mm512_xor_si512(_mm512_and_si512(_mm512_srli_epi16(code, 1), seven), sign), sign);
        const __m512i lower = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(code, doubled, _mm512_slli_epi16(odd, 1)), quadrupled, none);
        const __m512i upper = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(none, doubled, halved), quadrupled, code);
        _mm512_storeu_si512(to + step * kTileBytes, lower);
        _mm512_storeu_si512(to + kUpper + step * kTileBytes, upper);
    }
}

// What meets while it is near: two tiles of tokens and a block; a tile and two blocks; or the lower and upper parts of a stepped tile and a block.
enum class Meeting { kTokens, kBlocks, kSteps };

// Tiles for m tokens: sums, codes, weights. Of fewer than sixteen rows products take less time.
inline TileShapes span_shapes(size_t m, bool stepped) {
    TileShapes shapes = kTileShapes;
    for (size_t i = 0; i < (stepped ? 6 : 5) && m < kTileTokens; ++i) shapes.rows[i] = static_cast<uint8_t>(m);
    return shapes;
}

// Whose sums tiles give: expanded weights of a span and what rows bring to its sums; of the first of some tokens what it brings, and its accumulator.
struct SumsOf {
    const uint8_t *weights, *head, *prepared;
    float* acc;
};

// Tile `to` plus codes of a tile times weights of another, whose numbers the instruction holds.
#define RIDGELINE_TILE_PRODUCT(weights_signed, to, codes, weights) \
    do { \
        if constexpr (weights_signed) _tile_dpbssd(to, codes, weights); \
        else _tile_dpbsud(to, codes, weights); \
    } while (false)

// 64 inputs of a span: of low bytes of the weights onto tiles 0 and 2, of high ones onto 1 and 3, the latter two of the second tile of tokens, or of
// the second block.
template <class F, Meeting kMeeting>
RIDGELINE_CODE_TILES_INLINE void multiply_step(const SumsOf& one, const SumsOf& other, size_t step, const uint8_t* codes, const uint8_t* second_codes) {
    using H = Halves<F>;
    constexpr bool kHigh = H::kCount == 2;
    const size_t place = step * SpanTiles<F>::kStepBytes;
    const uint8_t *weights = one.weights + place, *second_weights = other.weights + place;
    _tile_loadd(4, codes + step * kTileBytes, kSpanTile);
    _tile_loadd(6, weights, kQuadBytes);
    RIDGELINE_TILE_PRODUCT(H::kLowSigned, 0, 4, 6);
    if constexpr (kHigh) {
        _tile_loadd(7, weights + kTileBytes, kQuadBytes);
        RIDGELINE_TILE_PRODUCT(H::kHighSigned, 1, 4, 7);
    }
    if constexpr (kMeeting == Meeting::kBlocks) {
        _tile_loadd(5, second_weights, kQuadBytes);
        RIDGELINE_TILE_PRODUCT(H::kLowSigned, 2, 4, 5);
        if constexpr (kHigh) {
            _tile_loadd(6, second_weights + kTileBytes, kQuadBytes);
            RIDGELINE_TILE_PRODUCT(H::kHighSigned, 3, 4, 6);
        }
    } else {
        _tile_loadd(5, second_codes + step * kTileBytes, kSpanTile);
        RIDGELINE_TILE_PRODUCT(H::kLowSigned, 2, 5, 6);
        if constexpr (kHigh) RIDGELINE_TILE_PRODUCT(H::kHighSigned, 3, 5, 7);
    }
}
#undef RIDGELINE_TILE_PRODUCT

// [4, 16, 16]: low and high of both.
template <class F>
RIDGELINE_CODE_TILES_INLINE void store_sums(int32_t* sums) {
    constexpr bool kHigh = SpanTiles<F>::kHalves == 2;
    constexpr size_t kEach = kTileTokens * kLanes;
    _tile_stored(0, sums, kQuadBytes);
    if constexpr (kHigh) _tile_stored(1, sums + kEach, kQuadBytes);
    _tile_stored(2, sums + 2 * kEach, kQuadBytes);
    if constexpr (kHigh) _tile_stored(3, sums + 3 * kEach, kQuadBytes);
}

// The integers of a token and a span from what tiles gave: low sums, and high ones behind them.
template <class F>
inline Ints joined(const int32_t* sums) {
    const Ints low = load_ints(sums);
    if constexpr (SpanTiles<F>::kHalves == 1) return low;
    else return low + Ints{_mm512_slli_epi32(load_ints(sums + kTileTokens * kLanes).v, Halves<F>::kShift)};
}

// The sums of a span onto the accumulators [kCount, 16] of some tokens. Those of the upper parts of stepped codes stand where a second tile's would.
template <class F, size_t kCount, bool kStepped>
__attribute__((always_inline)) inline void add_span_sums(const SumsOf& of, const int32_t* sums) {
    using T = SpanTiles<F>;
    const Vec scale = load(reinterpret_cast<const float*>(of.head + T::kScale));
    Vec minimum = scale;
    Ints twins[T::kTwinWords + 1], zeros = ints(0);
    if constexpr (kSpanMinima<F>) minimum = load(reinterpret_cast<const float*>(of.head + T::kMinimum));
    if constexpr (kZerosOfRows<F>) zeros = load_ints(of.head + T::kZeros);
    RIDGELINE_UNROLL
    for (size_t pair = 0; pair < T::kTwinWords; ++pair) twins[pair] = load_ints(of.head + pair * kQuadBytes);
    const uint8_t* prepared = of.prepared;
    float* acc = of.acc;
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kCount; ++i, acc += kLanes, prepared += T::kToken) {
        Ints dot = joined<F>(sums + i * kLanes);
        if constexpr (kStepped) dot = dot + Ints{_mm512_slli_epi32(joined<F>(sums + (2 * kTileTokens + i) * kLanes).v, 2)};
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

// Two tiles' worth of products at a time; while tiles multiply, vectors work on the sums that they gave before.
template <class F, Meeting kMeeting>
class Meetings {
    using T = SpanTiles<F>;
    static constexpr bool kStepped = kMeeting == Meeting::kSteps;
    static constexpr size_t kTokens = kStepped ? kTileTokens : 2 * kTileTokens, kPart = kTokens / T::kSteps;

public:
    explicit Meetings(size_t rows) : rows_(rows) {}      // tokens of a tile

    // Codes as tiles, and whose the sums of both will be; what is expanded meanwhile.
    RIDGELINE_CODE_TILES_INLINE void meet(const uint8_t* codes, const uint8_t* second_codes, const SumsOf& one, const SumsOf& other, Expansion<F>& next) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
#pragma GCC unroll 4
        for (size_t step = 0; step < T::kSteps; ++step) {
            multiply_step<F, kMeeting>(one, other, step, codes, second_codes);
            next.advance();
            if (of_[0].head != nullptr) add(step);
        }
        store_sums<F>(sums_);
        of_[0] = one, of_[1] = other;
    }
    RIDGELINE_CODE_TILES_INLINE void finish() {
        for (size_t part = 0; part < T::kSteps && of_[0].head != nullptr; ++part) add(part);
        of_[0].head = nullptr;
    }

private:
    __attribute__((always_inline)) void add(size_t part) {
        const size_t first = part * kPart % kTileTokens, which = part * kPart / kTileTokens;
        const SumsOf& of = of_[which];
        if (first < rows_)
            add_span_sums<F, kPart, kStepped>({nullptr, of.head, of.prepared + first * T::kToken, of.acc + first * kLanes},
                                              sums_ + (which * 2 * kTileTokens + first) * kLanes);
    }
    alignas(64) int32_t sums_[4 * kTileTokens * kLanes];
    SumsOf of_[2] = {};
    size_t rows_;
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
