// How phases are cut into chunks.
#include <algorithm>

#include "runtime/plan.h"

namespace ridgeline {

namespace {

constexpr size_t kChunksEach = 4;        // chunks per thread: enough to even out, few enough to cost nothing
// Products of few tokens wait for memory and prepare nothing for a chunk. In large ones more chunks let threads that read at different speeds
// end closer together.
constexpr size_t kFewTokens = 8, kMostChunksEach = 16, kFineBytes = 256 << 10;
constexpr size_t kTogether = 4;          // blocks that kernels of few tokens read in turn, at most
constexpr size_t kMostBlocks = 64;       // of a chunk: the last one is what the others wait for
// Products with floats of many tokens are cut by tokens too: a chunk copies its tokens' inputs once for all blocks that it has.
constexpr size_t kPartTokens = 60;

}  // namespace

size_t in_streams(size_t claim, size_t chunks, size_t streams) {
    const size_t stream = claim % streams;
    return stream * (chunks / streams) + std::min(stream, chunks % streams) + claim / streams;
}

size_t Plan::chunks(const Phase& phase, const Step& step) const {
    const size_t rows = rows_of(phase, step);
    switch (phase.kind) {
        case PhaseKind::rows: return std::min(rows, scratch_.size() * kChunksEach);
        case PhaseKind::products:
            return rows == 0 || (screened_ && &phase == &head()) ? 0 : ceiling(phase.blocks, blocks_each(phase, step)) * parts(phase, step);
        case PhaseKind::sort: return phase.routing != nullptr && rows > 0 && (rows > phase.routing->k() || phase.routing->stored()) ? 1 : 0;
        case PhaseKind::experts: {
            const size_t tiles = rows == 0 ? 0 : phase.routing->tiles(rows);
            return tiles == 0 ? 0 : tiles * ceiling(phase.blocks, expert_blocks_each(phase, tiles));
        }
        case PhaseKind::attention: return cuts_[phase.cut].count;
        case PhaseKind::merge: return cuts_[phase.cut].partial_floats > 0 ? 1 : 0;
        case PhaseKind::recurrences: return step.rows * phase.recurrence.parts;
        case PhaseKind::measure: case PhaseKind::threshold:
            return screened_ && !screen_->few() ? std::min(rows, scratch_.size() * kChunksEach) : 0;
        case PhaseKind::bound: case PhaseKind::compute:
            return screened_ && (phase.kind == PhaseKind::compute || !screen_->few()) ? ceiling(head().blocks, blocks_each(head(), step)) : 0;
    }
    return 0;
}

// Neighbours of one adapter pass through all ops together, and share what is read of it; others one by one, as each reads ascending memory.
void Plan::compute_rows(const Phase& phase, const Step& step, size_t chunk) const {
    const size_t rows = rows_of(phase, step), count = chunks(phase, step), end = rows * (chunk + 1) / count;
    for (size_t row = rows * chunk / count, next; row < end; row = next) {
        next = row + 1;
        while (phase.slots != nullptr && next < std::min(row + kRunRows, end) && phase.slots[next] == phase.slots[row]) ++next;
        for (const RowOp& op : phase.rows) op.run(&op.params, step, row, next - row);
    }
}

// Parts of the tokens: chunks are (part, blocks of all products).
size_t Plan::parts(const Phase& phase, const Step& step) const {
    if (!phase.floats || &phase == &head()) return 1;
    return std::clamp<size_t>(rows_of(phase, step) / kPartTokens, 1, scratch_.size() * kChunksEach);
}

size_t Plan::blocks_each(const Phase& phase, const Step& step) const {
    size_t each = kChunksEach;
    if (rows_of(phase, step) <= kFewTokens) each = std::clamp(phase.bytes / (scratch_.size() * kFineBytes), kChunksEach, kMostChunksEach);
    each = std::clamp<size_t>(phase.blocks * parts(phase, step) / (scratch_.size() * each), 1, kMostBlocks);
    if (&phase == &head()) return ceiling(each, kSampleBlocks) * kSampleBlocks;
    if (rows_of(phase, step) <= kFewTokens) return each < kTogether / 2 ? each : (each + kTogether / 2) / kTogether * kTogether;
    // Even: kernels of many tokens take two blocks at a time.
    if (!phase.floats) return std::max<size_t>(each / 2 * 2, phase.blocks < 2 * scratch_.size() ? 1 : 2);
    return ceiling(ceiling(phase.blocks, ceiling(phase.blocks, each)), 2) * 2;
}

size_t Plan::expert_blocks_each(const Phase& phase, size_t tiles) const {
    return std::clamp<size_t>(tiles * phase.blocks / (scratch_.size() * kChunksEach), 1, std::min(phase.blocks, kMostBlocks));
}

}  // namespace ridgeline
