// Cuts a step's attention into items: tiles of queries, and for a few long rows also runs of KV splits.
#include "attention/parts.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kTileBytes = 256 << 10;      // of what a tile's query rows need: half of a second-level cache
constexpr size_t kMostTileRows = 128;
constexpr size_t kItemsEach = 4;              // items per thread: enough to even out
constexpr size_t kLeastWork = 256 << 10;      // multiply-adds of an item that is worth cutting off
constexpr size_t kMostPartials = 4 << 20;     // floats of partial results of a step

// Some tokens of one row, with all splits that they see.
struct Tile {
    int32_t row, first_token, tokens, first_split, splits;
    size_t work;                         // multiply-adds of one KV head
};

class Cutter {
public:
    Cutter(const Attention& op, const Step& step, AttentionItem* items) : op_(op), step_(step), shape_(op), items_(items) {}

    // Tokens of a tile: as many as the second-level cache bears, more where items would not fit otherwise.
    void choose_tile(size_t capacity) {
        size_t rows = kTileBytes / shape_.row_bytes();
        rows = rows < kMostTileRows ? rows : kMostTileRows;
        tile_tokens_ = rows > shape_.group ? rows / shape_.group : 1;
        while (tiles() * op_.cache.kv_heads > capacity && tile_tokens_ < step_.tokens) tile_tokens_ *= 2;
        spare_ = capacity > tiles() * op_.cache.kv_heads ? capacity - tiles() * op_.cache.kv_heads : 0;
    }

    // Heavy tiles first: the last item is what the team waits for.
    size_t cut(size_t threads) {
        size_t work = 0;
        each_tile([&](const Tile& tile) { work += tile.work * op_.cache.kv_heads; });
        const size_t share = work / (threads * kItemsEach) + 1, goal = share > kLeastWork ? share : kLeastWork;
        const auto add_if = [&](bool heavy) {
            each_tile([&](const Tile& tile) {
                if ((tile.work * 2 > goal) == heavy) add(tile, threads > 1 ? tile.work / goal + 1 : 1);
            });
        };
        add_if(true);
        add_if(false);
        return count_;
    }

    size_t partial_floats() const { return partial_floats_; }

private:
    size_t tiles() const {
        size_t count = 0;
        for (size_t row = 0; row < step_.rows; ++row)
            count += (static_cast<size_t>(step_.cu_q[row + 1] - step_.cu_q[row]) + tile_tokens_ - 1) / tile_tokens_;
        return count;
    }

    template <typename F>
    void each_tile(F f) const {
        const int32_t size = static_cast<int32_t>(tile_tokens_);
        for (int32_t row = 0; row < static_cast<int32_t>(step_.rows); ++row) {
            const int32_t begin = step_.cu_q[row], tiles = (step_.cu_q[row + 1] - begin + size - 1) / size;
            for (int32_t tile = tiles - 1; tile >= 0; --tile) {
                const int32_t first = begin + tile * size, left = step_.cu_q[row + 1] - first;
                f(tile_at(row, first, left < size ? left : size));
            }
        }
    }

    Tile tile_at(int32_t row, int32_t first, int32_t tokens) const {
        const int64_t split = static_cast<int64_t>(kSplit), end = position_of(op_, step_, row, first + tokens - 1) + 1;
        const int64_t earliest = seen(op_, position_of(op_, step_, row, first), 0).first, first_split = earliest / split;
        const size_t work = static_cast<size_t>(tokens * (end - earliest)) * shape_.group * shape_.width * 2;
        return {row, first, tokens, static_cast<int32_t>(first_split), static_cast<int32_t>((end + split - 1) / split - first_split), work};
    }

    // Splits of an item of `tile`: all of them where items or partial results would not fit.
    int32_t piece(const Tile& tile, size_t pieces) {
        const int32_t size = static_cast<int32_t>((static_cast<size_t>(tile.splits) + pieces - 1) / pieces);
        const size_t more = (static_cast<size_t>((tile.splits + size - 1) / size) - 1) * op_.cache.kv_heads;
        const size_t floats = partials_of(tile, tile.splits) * op_.cache.kv_heads;
        if (more == 0 || more > spare_ || partial_floats_ + floats > kMostPartials) return tile.splits;
        spare_ -= more;
        return size;
    }

    size_t partials_of(const Tile& tile, int32_t splits) const {
        return static_cast<size_t>(splits) * static_cast<size_t>(tile.tokens) * shape_.group * shape_.partial_floats();
    }

    void add(const Tile& tile, size_t pieces) {
        const int32_t splits = tile.splits, size = piece(tile, pieces);
        for (int32_t head = 0; head < static_cast<int32_t>(op_.cache.kv_heads); ++head)
            for (int32_t at = 0; at < splits; at += size) {
                const int32_t here = splits - at < size ? splits - at : size;
                AttentionItem& item = items_[count_++];
                item = {tile.row, head, tile.first_token, tile.tokens, tile.first_split + at, here, -1};
                if (size == splits) continue;
                item.partial = static_cast<int32_t>(partial_floats_);
                partial_floats_ += partials_of(tile, here);
            }
    }

    const Attention& op_;
    const Step& step_;
    const Shape shape_;
    AttentionItem* items_;
    size_t tile_tokens_ = 1, spare_ = 0, count_ = 0, partial_floats_ = 0;
};

}  // namespace

size_t attention_items(const Attention& op, const Step& step, size_t threads, AttentionItem* items, size_t capacity, size_t* partial_floats) {
    Cutter cutter(op, step, items);
    cutter.choose_tile(capacity);
    const size_t count = cutter.cut(threads);
    *partial_floats = cutter.partial_floats();
    return count;
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
