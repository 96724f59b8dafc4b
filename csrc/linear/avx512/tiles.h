// Products of eight tokens and more by AMX: blocks of 16 rows are expanded to tiles of bytes, where sixteen tokens at a time meet them. Tiles sum the
// same integers as vectors do; what follows is theirs, in their order, so that no bit depends on who multiplied.
//
// Of formats of groups a tile has 32 inputs of a record as code - zero, and its sums become fp32 at once. Of formats of spans a factor belongs to
// every 32 or 16 inputs, and tiles know none: what they multiply is (code - zero) factor itself, at most 14 bits with a sign, in two bytes, high and
// low (`Halves`). Both add up over a span, and I = 2^shift * (sum of high x) + (sum of low x). Of stepped activations x is a code times up to 4, two
// bytes as well: 4 upper + lower, which meet the tiles as if they were of two tokens.
//
// While tiles multiply, vectors work on the sums that they gave before, and expand the weights that come next.
#pragma once

#include <algorithm>

#include "linear/avx512/groups.h"
#include "linear/avx512/panels.h"
#include "linear/avx512/span_tiles.h"
#include "linear/avx512/spans.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kTileBlocks = 2;        // that tokens meet while they are near
constexpr size_t kSpanPanel = 256;       // tokens of a call of spans at a time: their accumulators leave room for many blocks
constexpr size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of scratch of a format of groups, for `tiles` tiles of tokens; how many tokens are prepared at a time, at most.
template <class F>
constexpr size_t group_scratch(size_t k, size_t tiles) { return k / kCodeGroup * (kTileBlocks * GroupTile<F>::kBytes + tiles * kGroupTokens<F>); }
template <class F>
size_t panel_of(size_t k) {
    size_t panel = F::kIntegerSpans ? kSpanPanel : kTilePanel;
    if constexpr (!F::kIntegerSpans)
        while (panel >= kTileTokens && group_scratch<F>(k, tiles_of(panel)) > kLinearScratch) panel /= 2;
    return panel;
}

RIDGELINE_CODE_TILES inline void begin_code_tiles(const TileShapes& shapes) {
    written();
    _tile_loadconfig(&shapes);
}
RIDGELINE_CODE_TILES inline void end_code_tiles() { _tile_release(); }

// Where a call has what: expanded weights of two blocks; of some spans, what tokens bring to each and their codes there; accumulators of as many
// blocks as find room. Of few tokens all spans are prepared once, so that a block's follow each other.
template <class F, bool kStepped>
struct SpanScratch {
    using T = SpanTiles<F>;
    static constexpr size_t kTile = T::kSteps * kTileBytes, kCodes = kStepped ? 2 * kTile : kTile, kMeet = kStepped ? 1 : 2;
    static constexpr size_t kMostCodes = kLinearScratch / 4, kExpanded = lines(kTileBlocks * (T::kWeights + 3 * T::kHead));
    const size_t tiles, room = tiles * kTileTokens, span_bytes = tiles * kCodes + lines(room * T::kToken), spans, blocks;
    uint8_t *const weights, *const codes, *const prepared;
    float* const acc;
    SpanScratch(size_t m, size_t all, uint8_t* scratch)
        : tiles(tiles_of(m)), spans(std::clamp<size_t>(kMostCodes / span_bytes, 1, all)),
          blocks((kLinearScratch - kExpanded - spans * span_bytes) / (room * kQuadBytes) / kTileBlocks * kTileBlocks), weights(scratch),
          codes(scratch + kExpanded), prepared(codes + spans * tiles * kCodes), acc(reinterpret_cast<float*>(codes + spans * span_bytes)) {
        if (m % kTileTokens != 0) memset(codes, 0, spans * span_bytes);      // the last tile lacks tokens
    }
    uint8_t* heads(size_t turn) const { return weights + kTileBlocks * (T::kWeights + turn % 3 * T::kHead); }
    uint8_t* prepared_of(size_t span) const { return prepared + span * lines(room * T::kToken); }

    // Codes and what else tokens bring to `count` spans, from the first of them.
    void prepare(const Tokens& x, size_t m, size_t first, size_t count) const {
        for (size_t i = 0; i < m; ++i)
            for (size_t span = 0; span < count; ++span) {
                const int8_t* from = x.codes + i * x.stride + (first + span) * F::kSpan;
                const size_t group = i * x.groups + (first + span) * kSpanGroups<F>;
                uint8_t* row = codes + (span * tiles + i / kTileTokens) * kCodes + i % kTileTokens * kSpanTile;
                Steps steps = {{}, x.scales[group]};
                if constexpr (kStepped) {
                    steps.gather(x.scales + group);
                    place_stepped_codes<F>(from, steps, row);
                } else {
                    place_codes<F>(from, row);
                }
                prepare_token<F>(x.sums + 2 * group, steps.scale, prepared_of(span) + i * T::kToken);
            }
    }
};

// Outputs of `count` blocks for m tokens.
template <class F, bool kStepped>
RIDGELINE_CODE_TILES void multiply_spans_tiled(const Matrix& matrix, const Tokens& x, size_t m, const Product& to, size_t first, size_t count,
                                               uint8_t* scratch) {
    using T = SpanTiles<F>;
    using S = SpanScratch<F, kStepped>;
    const size_t bytes = block_bytes<F>(matrix.k), spans = matrix.k / F::kSpan;
    const S of(m, spans, scratch);
    Meetings<F, kStepped ? Meeting::kSteps : Meeting::kTokens> meetings(std::min(m, kTileTokens));
    Meetings<F, Meeting::kBlocks> last(std::min(m, kTileTokens));
    for (const size_t end = first + count; first < end; first += of.blocks) {
        const size_t here = std::min(end - first, of.blocks);
        memset(of.acc, 0, here * of.room * kQuadBytes);
        for (size_t from = 0; from < spans; from += of.spans) {
            const size_t some = std::min(spans - from, of.spans), turns = (here + kTileBlocks - 1) / kTileBlocks * some;
            of.prepare(x, m, from, some);
            const auto expand = [&](size_t turn) {       // spans of two blocks, then of the next two
                const size_t block = turn / some * kTileBlocks;
                if (block >= here) return Expansion<F>();
                const uint8_t* span = matrix.data + (first + block) * bytes + (from + turn % some) * kSpanBytes<F>;
                const size_t ahead = of.spans == 1 ? kTileBlocks * bytes : kAhead;
                return Expansion<F>{span, bytes, std::min(here - block, kTileBlocks), ahead, of.weights, of.heads(turn), 0};
            };
            Expansion<F> next = expand(0);
            for (size_t turn = 0; turn < turns; ++turn) {
                const size_t block = turn / some * kTileBlocks, span = turn % some, blocks = std::min(here - block, kTileBlocks);
                const uint8_t *codes = of.codes + span * of.tiles * S::kCodes, *prepared = of.prepared_of(span), *heads = of.heads(turn);
                next.finish();
                written();
                const auto place = [&](size_t tile, size_t i) __attribute__((always_inline)) {
                    return SumsOf{of.weights + i * T::kWeights, heads + i * T::kHead, prepared + tile * kTileTokens * T::kToken,
                                 of.acc + ((block + i) * of.tiles + tile) * kTileTokens * kLanes};
                };
                size_t tile = 0;
                for (; tile + S::kMeet <= of.tiles; tile += S::kMeet)
                    for (size_t i = 0; i < blocks; ++i) {
                        if (tile + S::kMeet == of.tiles && i + 1 == blocks) next = expand(turn + 1);
                        const uint8_t* tokens = codes + tile * S::kCodes;
                        meetings.meet(tokens, tokens + S::kTile, place(tile, i), place(tile + S::kMeet - 1, i), next);
                    }
                if (tile == of.tiles) continue;
                // Of an odd number of blocks the one behind the last has what stood there, and accumulators that nobody reads.
                next = expand(turn + 1);
                last.meet(codes + tile * S::kCodes, codes, place(tile, 0), place(tile, 1), next);
            }
            meetings.finish();
            last.finish();
            written();
        }
        for (size_t i = 0; i < m; ++i)
            for (size_t block = 0; block < here; ++block)
                write(load(of.acc + (block * of.room + i) * kLanes), to.out + i * to.stride + (first + block) * kBlockRows,
                      columns_of(matrix, first + block));
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

// Fewer tokens are faster by vectors, and of formats of groups those of whose tiles more than a third would stand twice.
template <class F>
constexpr size_t kLeastTiled = F::kIntegerSpans ? 8 : F::Coding::kBits == 8 ? 2 * kTileTokens : kTileTokens;
template <class F>
bool faster_tiled(size_t m) { return m >= kLeastTiled<F> && (F::kIntegerSpans || 3 * m >= 2 * kTileTokens * tiles_of(m)); }

// Whether so many tokens are multiplied here, and then their outputs.
template <class F>
bool multiply_tiled(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    if (!has_tiles()) {
        if constexpr (F::kIntegerSpans) return multiply_spans_by_vectors<F>(matrix, x, m, to, first, count, scratch);
        else return multiply_panels<F>(matrix, x, m, to, first, count, scratch);
    }
    const size_t panel = panel_of<F>(matrix.k);
    if (!faster_tiled<F>(m) || panel < kTileTokens) return false;
    begin_code_tiles(F::kIntegerSpans ? span_shapes(m, x.stepped) : kGroupShapes);
    for (size_t from = 0; from < m; from += panel) {
        const size_t token = !F::kIntegerSpans && m - from < kTileTokens ? m - kTileTokens : from, here = std::min(m - token, panel);
        const Tokens of = tokens(x, matrix.k, token);
        const Product part = {to.out + token * to.stride, to.stride};
        if constexpr (!F::kIntegerSpans) multiply_groups_tiled<F>(matrix, of, here, part, first, count, scratch);
        else if (kSteppable<F> && x.stepped) multiply_spans_tiled<F, kSteppable<F>>(matrix, of, here, part, first, count, scratch);
        else multiply_spans_tiled<F, false>(matrix, of, here, part, first, count, scratch);
    }
    end_code_tiles();
    return true;
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
