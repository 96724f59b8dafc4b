// What all products by AMX share, and tiles of formats of groups: linear/avx512/tiles.h says what they are.
#pragma once

#include "linear/direct.h"
#include "runtime/platform.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kTileTokens = 16;       // of a tile
constexpr size_t kTilePanel = 512;       // tokens that are prepared at a time
constexpr size_t kTileBytes = 1024, kSpanTile = 64;      // inputs of a tile of spans

#define RIDGELINE_CODE_TILES __attribute__((target("amx-tile,amx-int8")))
#define RIDGELINE_CODE_TILES_INLINE __attribute__((target("amx-tile,amx-int8"), always_inline)) inline

// The compiler does not know that loads of tiles read memory: what is stored before comes before them, and behind them what is stored later.
inline void written() { asm volatile("" ::: "memory"); }

// Of groups: tile 0 has sums, 4 tokens, 6 weights.
alignas(64) const TileShapes kGroupShapes = {1, 0, {}, {64, 64, 64, 64, 32, 32, 64, 64}, {16, 16, 16, 16, 16, 16, 8, 8}};

// Tiles of m tokens. Of formats of groups, 16 tokens at least: where the last tile would have fewer it begins earlier, for what two tiles give of a
// token is the same.
inline size_t tiles_of(size_t m) { return (m + kTileTokens - 1) / kTileTokens; }
inline size_t first_of(size_t tile, size_t m) { return tile * kTileTokens < m - kTileTokens ? tile * kTileTokens : m - kTileTokens; }

inline Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x.v); }

// Integers of 16 bits side by side in their lanes.
inline __m512i side_by_side(Ints low, Ints high) {
    return _mm512_or_si512(_mm512_and_si512(low.v, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(high.v, 16));
}

// Codes of a quad less the format's zero, as signed bytes.
template <class F>
inline Quad centred(Quad codes) { return {_mm512_sub_epi8(codes.v, _mm512_set1_epi8(static_cast<char>(F::kZero)))}; }

template <class F>
struct GroupTile {
    static constexpr size_t kCodes = kGroupQuads * kQuadBytes, kMinimum = kCodes + kQuadBytes, kBytes = kMinimum + (F::kMinima ? kQuadBytes : 0);
};

template <class F>
void expand_groups(const uint8_t* block, size_t k, uint8_t* to) {
    using T = GroupTile<F>;
    for (size_t span = 0; span < k / F::kSpan; ++span, block += kSpanBytes<F>) {
        const uint8_t* record = block + F::kHead;
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, record += kRecordBytes<F>, to += T::kBytes) {
            prefetch_record<kRecordBytes<F>, 1>(record);
            RIDGELINE_UNROLL
            for (size_t t = 0; t < kGroupQuads; ++t) store_quad(to + t * kQuadBytes, centred<F>(F::Coding::quad(record, t)));
            Vec scale, minimum;
            F::floats(block, record + F::Coding::kBytes, &scale, &minimum);
            store(reinterpret_cast<float*>(to + T::kCodes), scale);
            if constexpr (F::kMinima) store(reinterpret_cast<float*>(to + T::kMinimum), minimum);
        }
    }
    written();
}

// A group of sixteen tokens, onto tile 0.
RIDGELINE_CODE_TILES_INLINE void multiply_group(const uint8_t* tile, const int8_t* codes, size_t apart) {
    _tile_zero(0);
    _tile_loadd(4, codes, apart);
    _tile_loadd(6, tile, kQuadBytes);
    _tile_dpbssd(0, 4, 6);
}

// What sixteen tokens bring to a group: scales, and -(sum of codes) for minima.
template <class F>
constexpr size_t kGroupTokens = (F::kMinima ? 2 : 1) * kTileTokens * sizeof(float);

template <class F>
void prepare_groups(const Tokens& x, uint8_t* to) {
    for (size_t group = 0; group < x.groups; ++group, to += kGroupTokens<F>) {
        float scales[2 * kTileTokens];
        for (size_t i = 0; i < kTileTokens; ++i) {
            const int32_t* sums = x.sums + (i * x.groups + group) * 2;
            scales[i] = x.scales[i * x.groups + group];
            scales[kTileTokens + i] = -static_cast<float>(sums[0] + sums[1]);
        }
        memcpy(to, scales, kGroupTokens<F>);
    }
}

// The sums of a group onto the accumulators of sixteen tokens. prepared: what these bring to it.
template <class F>
__attribute__((always_inline)) inline void add_group(const uint8_t* tile, const int32_t* sums, const uint8_t* prepared, Vec* acc) {
    using T = GroupTile<F>;
    const float *scales = reinterpret_cast<const float*>(prepared), *minus_sums = scales + kTileTokens;
    const Vec scale = load(reinterpret_cast<const float*>(tile + T::kCodes));
    Vec minimum = scale;
    if constexpr (F::kMinima) minimum = load(reinterpret_cast<const float*>(tile + T::kMinimum));
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kTileTokens; ++i) {
        const Ints dot = load_ints(sums + i * kLanes);
        acc[i] = add_part(acc[i], kZerosOfRows<F> ? without_zeros(dot, minus_sums[i], minimum) : floats(dot), scale, scales[i]);
        if (F::kMinima && !kZerosOfRows<F>) acc[i] = fma(all(minus_sums[i]), minimum * all(scales[i]), acc[i]);
    }
}

// Outputs of sixteen tokens, their codes `apart` bytes from each other, and a block that is expanded.
template <class F>
RIDGELINE_CODE_TILES void multiply_group_tiles(const uint8_t* tile, const int8_t* codes, size_t apart, size_t groups, const uint8_t* prepared, float* out,
                                               size_t stride, size_t columns) {
    alignas(64) int32_t sums[kTileTokens * kLanes];
    Vec acc[kTileTokens];
    RIDGELINE_UNROLL
    for (Vec& each : acc) each = zero();
    multiply_group(tile, codes, apart);
    _tile_stored(0, sums, kQuadBytes);
    for (size_t group = 1; group < groups; ++group, tile += GroupTile<F>::kBytes, prepared += kGroupTokens<F>) {
        multiply_group(tile + GroupTile<F>::kBytes, codes + group * kCodeGroup, apart);
        add_group<F>(tile, sums, prepared, acc);
        _tile_stored(0, sums, kQuadBytes);
    }
    add_group<F>(tile, sums, prepared, acc);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kTileTokens; ++i) write(acc[i], out + i * stride, columns);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
