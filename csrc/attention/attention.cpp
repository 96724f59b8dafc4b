// Attention over a paged cache: scores, softmax and weighted values of one split of positions at a time, splits merged in order.
//
// What a query gets depends on its position, on itself and on the keys and values that it sees. A split starts from nothing: its greatest
// score, the sum of its exponentials and of its weighted values are those of its 256 positions, whoever asks with whom; and every query
// merges its splits one by one, ascending. A hidden key is never multiplied: 0 * NaN would be NaN.
#include <float.h>

#include "attention/merge.h"
#include "attention/parts.h"
#include "attention/tiles.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kManyRows = 2 * kMixRows;  // from here on it pays to lay values out in strips
constexpr size_t kCacheLine = 64;

// Scratch of one call, cut up for `rows` query rows.
struct Work {
    float *q, *scores, *sums, *totals;             // [rows, width], [rows, kScoreStride], [rows, width] twice
    float *peak, *weight, *total_peak, *total_weight;  // [rows]: greatest score and sum of exponentials, of the split and so far
    int32_t *first, *last;                         // [rows]: what a row sees of the split
    float *key_scales, *value_scales;              // [kScoreStride]
    const uint8_t** at;                            // [kScoreStride]: keys or values of a tile, by position in the split
    float* tile;                                   // in fp32

    Work(uint8_t* scratch, const Shape& shape, size_t rows) {
        const auto take = [&](size_t bytes) { uint8_t* mine = scratch; scratch += (bytes + 63) / 64 * 64; return mine; };
        const auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); };
        tile = floats(shape.tile_bytes() / sizeof(float));
        key_scales = floats(kScoreStride), value_scales = floats(kScoreStride);
        at = reinterpret_cast<const uint8_t**>(take(kScoreStride * sizeof(uint8_t*)));
        q = floats(rows * shape.width), sums = floats(rows * shape.width), totals = floats(rows * shape.width);
        scores = floats(rows * kScoreStride);
        peak = floats(rows), weight = floats(rows), total_peak = floats(rows), total_weight = floats(rows);
        first = reinterpret_cast<int32_t*>(floats(rows)), last = reinterpret_cast<int32_t*>(floats(rows));
    }
};

// Some query rows of an item, and the split that they are at. Rows ascend in position, so what they see of it ascends at both ends.
class Walk {
public:
    Walk(const Attention& op, const Step& step, const AttentionItem& item, size_t first_row, size_t rows, uint8_t* scratch)
        : op_(op), step_(step), item_(item), shape_(op), first_row_(first_row), rows_(rows), work_(scratch, shape_, rows),
          table_(step.tables[op.kv_group] + static_cast<size_t>(item.row) * step.table_width),
          strips_(rows >= kManyRows), direct_(!strips_ && op.cache.head_dim == shape_.width), read_(direct_ ? op.cache.type : kKVF32) {}

    // Rows of q, scaled and padded with zeros.
    void take_queries() {
        for (size_t row = 0; row < rows_; ++row) {
            const float* from = op_.q + place(row) * op_.cache.head_dim;
            float* to = work_.q + row * shape_.width;
            for (size_t d = 0; d < op_.cache.head_dim; ++d) to[d] = from[d] * op_.scale;
            for (size_t d = op_.cache.head_dim; d < shape_.width; ++d) to[d] = 0.0f;
        }
    }

    // The results of one split for all rows. False where no row sees any of it.
    bool compute(int32_t split) {
        begin_ = static_cast<int64_t>(split) * static_cast<int64_t>(kSplit);
        for (size_t row = 0; row < rows_; ++row) {
            const Seen some = seen(op_, position(row), begin_);
            work_.first[row] = static_cast<int32_t>(some.first);
            work_.last[row] = static_cast<int32_t>(some.last);
        }
        visible_ = static_cast<size_t>(position(rows_ - 1) + 1 - begin_);
        // Rows that see nothing of the split stand at the ends.
        low_ = 0, high_ = rows_;
        while (low_ < high_ && !sees(low_)) ++low_;
        while (high_ > low_ && !sees(high_ - 1)) --high_;
        if (low_ == high_) return false;
        const size_t first = static_cast<size_t>(work_.first[low_]), last = static_cast<size_t>(work_.last[high_ - 1]);
        score_keys(first, last);
        if (op_.cache.type == kKVInt8) take_scales(op_.cache.values, first, last, work_.value_scales);
        for (size_t row = low_; row < high_; ++row) softmax(row);
        for (float* sum = work_.sums + low_ * shape_.width; sum < work_.sums + high_ * shape_.width; sum += kLanes) store(sum, zero());
        mix_values(first, last);
        return true;
    }

    // Merges the split's results into those so far.
    void merge_split();

    void start_totals() {
        memset(work_.totals, 0, rows_ * shape_.width * sizeof(float));
        for (size_t row = 0; row < rows_; ++row) work_.total_peak[row] = -FLT_MAX, work_.total_weight[row] = 0.0f;
    }

    // The split's results as partial results: of all rows of the item, values' sums, then greatest scores, then weights.
    void put_partials(float* partials, size_t item_rows) const {
        float* sums = partials + first_row_ * shape_.width;
        float* peaks = partials + item_rows * shape_.width + first_row_;
        const size_t rows = high_ - low_;
        memcpy(sums + low_ * shape_.width, work_.sums + low_ * shape_.width, rows * shape_.width * sizeof(float));
        memcpy(peaks + low_, work_.peak + low_, rows * sizeof(float));
        memcpy(peaks + item_rows + low_, work_.weight + low_, rows * sizeof(float));
    }

    void put_totals();

private:
    size_t head(size_t row) const { return static_cast<size_t>(item_.kv_head) * shape_.group + (first_row_ + row) % shape_.group; }
    size_t place(size_t row) const {
        const size_t token = static_cast<size_t>(item_.first_token) + (first_row_ + row) / shape_.group;
        return token * op_.heads + head(row);
    }
    int64_t position(size_t row) const {
        return position_of(op_, step_, item_.row, item_.first_token + static_cast<int64_t>((first_row_ + row) / shape_.group));
    }
    bool sees(size_t row) const { return work_.first[row] < work_.last[row]; }

    // f(key, its bytes) for keys first … last - 1 of the split.
    template <typename F>
    void each(const uint8_t* cache, size_t first, size_t last, F f) const {
        const size_t block_tokens = op_.cache.block_tokens, stride = op_.cache.record_bytes;
        const uint8_t* base = cache + static_cast<size_t>(item_.kv_head) * op_.cache.head_bytes;
        for (size_t key = first; key < last;) {
            const size_t at = static_cast<size_t>(begin_) + key, offset = at % block_tokens;
            const uint8_t* bytes = base + static_cast<size_t>(table_[at / block_tokens]) * op_.cache.block_bytes + offset * stride;
            const size_t end = last - key < block_tokens - offset ? last : key + block_tokens - offset;
            for (; key < end; ++key, bytes += stride) f(key, bytes);
        }
    }

    void take_scales(const uint8_t* cache, size_t first, size_t last, float* scales) const {
        each(cache, first, last, [&](size_t key, const uint8_t* bytes) { memcpy(scales + key, bytes + op_.cache.head_dim, sizeof(float)); });
    }

    // Keys or values first … last - 1 of the split, behind work_.at[first …]: where they lie, or in fp32, in strips that are `step` floats apart.
    // `numbers`: of each.
    void take_tile(const uint8_t* cache, size_t numbers, size_t first, size_t last, size_t strip, size_t step);
    // Brings keys or values first … last - 1 of the split near, as far as there are any; 256 and more are the next split's.
    void ask_for(const uint8_t* cache, size_t first, size_t last) const;
    void score_keys(size_t first, size_t last);
    void softmax(size_t row);
    void mix_values(size_t first, size_t last);
    void mix_rows_of(size_t row, size_t rows, size_t first, size_t last, size_t d, size_t offset, size_t size);

    const Attention& op_;
    const Step& step_;
    const AttentionItem& item_;
    const Shape shape_;
    const size_t first_row_, rows_;
    Work work_;
    const int32_t* table_;
    const bool strips_;                  // many rows read values in strips
    const bool direct_;                  // few rows read the cache itself, many a tile in fp32
    const int read_;                     // type of what work_.at points to
    int64_t begin_ = 0;
    size_t low_ = 0, high_ = 0;          // rows that see something of the split
    size_t visible_ = 0;                 // positions from the split's first one to the last that any row sees
};

template <int Type>
inline Vec widened(const uint8_t* bytes, size_t d) {
    if constexpr (Type == kKVF32) return load(reinterpret_cast<const float*>(bytes) + d);
    else if constexpr (Type == kKVBF16) return load_bf16(reinterpret_cast<const uint16_t*>(bytes) + d);
    else return load_int8(reinterpret_cast<const int8_t*>(bytes) + d);
}

// A head in fp32, padded with zeros, in strips of `strip` floats, `step` floats apart. Codes stay without their scale: it goes onto the score,
// or onto the weight.
template <int Type>
inline void widen_record(const uint8_t* bytes, size_t head_dim, float* to, size_t strip, size_t step) {
    constexpr size_t kBytes = Type == kKVF32 ? 4 : Type == kKVBF16 ? 2 : 1;
    const size_t whole = head_dim / kLanes * kLanes;
    for (size_t d = 0, left = strip; d < whole; d += kLanes) {
        store(to, widened<Type>(bytes, d));
        to += kLanes;
        if ((left -= kLanes) == 0) to += step - strip, left = strip;
    }
    if (whole == head_dim) return;
    uint8_t rest[kLanes * 4] = {};
    memcpy(rest, bytes + whole * kBytes, (head_dim - whole) * kBytes);
    store(to, widened<Type>(rest, 0));
}

void Walk::take_tile(const uint8_t* cache, size_t numbers, size_t first, size_t last, size_t strip, size_t step) {
    const auto take = [&](auto widen_head) {
        each(cache, first, last, [&](size_t key, const uint8_t* bytes) {
            float* to = work_.tile + (key - first) * strip;
            widen_head(bytes, numbers, to, strip, step);
            work_.at[key] = reinterpret_cast<const uint8_t*>(to);
        });
    };
    if (direct_) each(cache, first, last, [&](size_t key, const uint8_t* bytes) { work_.at[key] = bytes; });
    else if (op_.cache.type == kKVF32) take(widen_record<kKVF32>);
    else if (op_.cache.type == kKVBF16) take(widen_record<kKVBF16>);
    else take(widen_record<kKVInt8>);
}

void Walk::ask_for(const uint8_t* cache, size_t first, size_t last) const {
    each(cache, first, last < visible_ ? last : visible_, [&](size_t, const uint8_t* bytes) {
        for (size_t line = 0; line < op_.cache.record_bytes; line += kCacheLine) __builtin_prefetch(bytes + line);
    });
}

template <int kValue>
struct Constant {
    static constexpr int value = kValue;
};

// Calls f with a type of the cache as a constant.
template <typename F>
inline void with_type(int type, F f) {
    if (type == kKVF32) f(Constant<kKVF32>());
    else if (type == kKVBF16) f(Constant<kKVBF16>());
    else f(Constant<kKVInt8>());
}

void Walk::score_keys(size_t first, size_t last) {
    // What is read as it lies is asked for a little at a time, a constant way ahead, and values behind keys.
    const size_t ahead = direct_ ? shape_.few_keys(op_.cache.record_bytes) : shape_.near_keys(), step = direct_ ? kKeyBlock : ahead;
    if (op_.cache.type == kKVInt8) take_scales(op_.cache.keys, first, last, work_.key_scales);
    if (direct_) ask_for(op_.cache.keys, first, first + ahead < last ? first + ahead : last);
    size_t begin = low_, end = low_;     // rows that see something of the tile
    for (size_t key = first; key < last; key += step) {
        const size_t stop = last - key < step ? last : key + step;
        if (key + ahead < last) ask_for(op_.cache.keys, key + ahead, key + ahead + step < last ? key + ahead + step : last);
        else ask_for(op_.cache.values, key + ahead - last + first, key + ahead + step - last + first);
        take_tile(op_.cache.keys, op_.cache.head_dim, key, stop, shape_.width, 0);
        for (size_t i = stop; i < stop + kKeyBlock; ++i) work_.at[i] = work_.at[stop - 1];
        while (begin < high_ && static_cast<size_t>(work_.last[begin]) <= key) ++begin;
        while (end < high_ && static_cast<size_t>(work_.first[end]) < stop) ++end;
        const size_t count = (stop - key + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
        if (begin == end) continue;
        with_type(read_, [&](auto type) {
            score<type.value>(work_.q + begin * shape_.width, end - begin, work_.at + key, count, shape_.width, work_.scores + begin * kScoreStride + key);
        });
    }
}

// Scores to weights, in place: e^(score - greatest), 0 for what is hidden. A value's scale goes onto its weight behind the sum. (Flattened: a
// vector goes to a called function and back through memory.)
__attribute__((flatten)) void Walk::softmax(size_t row) {
    float* scores = work_.scores + row * kScoreStride;
    const size_t first = static_cast<size_t>(work_.first[row]), last = static_cast<size_t>(work_.last[row]), begin = first / kLanes * kLanes;
    const bool scaled = op_.cache.type == kKVInt8;
    const Vec below = all(static_cast<float>(first)), above = all(static_cast<float>(last) - 1.0f), hidden = all(-INFINITY);
    Vec lanes, most = all(-FLT_MAX), weight = zero();
    {
        float ascending[kLanes];
        for (size_t i = 0; i < kLanes; ++i) ascending[i] = static_cast<float>(i);
        lanes = load(ascending);
    }
    for (size_t key = begin; key < last; key += kLanes) {
        Vec x = load(scores + key);
        if (scaled) x = x * load(work_.key_scales + key);
        if (op_.softcap != 0.0f) x = hyperbolic_tangent(x / all(op_.softcap)) * all(op_.softcap);
        if (key < first || key + kLanes > last) {
            const Vec at = lanes + all(static_cast<float>(key));
            x = where_below(at, below, hidden, where_below(above, at, hidden, x));
        }
        store(scores + key, x);
        most = larger(x, most);          // a score of NaN is left out here, and makes the sum NaN
    }
    const float peak = largest_of(most);
    for (size_t key = begin; key < last; key += kLanes) {
        const Vec x = exponential(load(scores + key) - all(peak));
        weight = weight + x;
        store(scores + key, scaled ? x * load(work_.value_scales + key) : x);
    }
    work_.peak[row] = peak;
    work_.weight[row] = sum_of(weight);
}

void Walk::mix_values(size_t first, size_t last) {
    // Many rows read values in strips, which stay in the first-level cache; few read some whole values there.
    const size_t width = shape_.value_width, strip = width % kStripLanes == 0 ? kStripLanes : kLanes;
    const size_t count = direct_ ? shape_.few_keys(op_.cache.record_bytes) : strips_ ? shape_.far_keys() : shape_.near_keys();
    const size_t size = strips_ ? strip : !direct_ ? width : width % kDirectLanes == 0 ? kDirectLanes : kLanes, passes = width / size;
    const size_t step = strips_ ? count * strip : size, together = strips_ && strip == kStripLanes ? kStripRows : kMixRows;
    for (size_t key = first; key < last; key += count) {
        const size_t stop = last - key < count ? last : key + count;
        take_tile(op_.cache.values, op_.value_dim, key, stop, strips_ ? strip : width, step);
        for (size_t pass = 0; pass < passes; ++pass) {
            // What comes next is asked for a little at a time: a processor waits for few lines at once.
            const size_t from = count * pass / passes, to = count * (pass + 1) / passes;
            if (stop < last) ask_for(op_.cache.values, stop + from, stop + to);
            else ask_for(op_.cache.keys, kSplit + from, kSplit + to);
            for (size_t row = low_; row < high_; row += together)
                mix_rows_of(row, high_ - row < together ? high_ - row : together, key, stop, pass * size, pass * step, size);
        }
    }
}

// Some rows and `size` numbers from d on; what all rows see they mix together, what lies before and behind each for itself.
void Walk::mix_rows_of(size_t row, size_t rows, size_t first, size_t last, size_t d, size_t offset, size_t size) {
    const size_t width = shape_.width;
    const auto from = [&](size_t r) { return static_cast<size_t>(work_.first[r]) > first ? static_cast<size_t>(work_.first[r]) : first; };
    const auto to = [&](size_t r) { return static_cast<size_t>(work_.last[r]) < last ? static_cast<size_t>(work_.last[r]) : last; };
    const auto some = [&](size_t r, size_t count, size_t begin, size_t end) {
        const float* weights = work_.scores + r * kScoreStride;
        float* sums = work_.sums + r * width + d;
        if (strips_ && size == kStripLanes) return mix_strip(count, weights, work_.at, begin, end, offset, width, sums);
        with_type(read_, [&](auto type) { mix<type.value>(count, weights, work_.at, begin, end, offset, size, width, sums); });
    };
    const size_t begin = from(row + rows - 1), end = to(row);
    if (begin <= from(row) && end >= to(row + rows - 1)) return some(row, rows, begin, end);
    const bool together = begin < end;
    for (size_t r = row; r < row + rows; ++r) some(r, 1, from(r), together ? begin : to(r));
    if (!together) return;
    some(row, rows, begin, end);
    for (size_t r = row; r < row + rows; ++r) some(r, 1, end, to(r));
}

void Walk::merge_split() {
    for (size_t row = low_; row < high_; ++row)
        merge_row(work_.totals + row * shape_.width, work_.total_peak + row, work_.total_weight + row, work_.sums + row * shape_.width,
                  work_.peak[row], work_.weight[row], shape_.width);
}

void Walk::put_totals() {
    for (size_t row = 0; row < rows_; ++row) {
        float* total = work_.totals + row * shape_.width;
        if (op_.sinks != nullptr) add_sink(total, work_.total_peak + row, work_.total_weight + row, op_.sinks[head(row)], shape_.width);
        put_row(total, work_.total_weight[row], op_.value_dim, op_.out + place(row) * op_.value_dim);
    }
}

void attend(const Attention& op, const Step& step, const AttentionItem& item, float* partials, uint8_t* scratch) {
    const Shape shape(op);
    const size_t rows = static_cast<size_t>(item.tokens) * shape.group, most = shape.most_rows();
    for (size_t first = 0; first < rows; first += most) {
        Walk walk(op, step, item, first, rows - first < most ? rows - first : most, scratch);
        walk.take_queries();
        if (item.partial < 0) walk.start_totals();
        for (int32_t split = 0; split < item.splits; ++split) {
            if (!walk.compute(item.first_split + split)) continue;
            if (item.partial < 0) walk.merge_split();
            else walk.put_partials(partials + item.partial + static_cast<size_t>(split) * rows * shape.partial_floats(), rows);
        }
        if (item.partial < 0) walk.put_totals();
    }
}

}  // namespace

extern const AttentionKernels kAttention;
const AttentionKernels kAttention = {attention_items, attend, merge};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
