// Changes of products by adapters: low-rank pairs of matrices, one row per call, each with the pair of its own slot.
//
// An output has one accumulator and the order of its sums depends on the pair alone, so company changes no bit. Both matrices lie in the
// order in which they are read, once and ascending: with a few tokens this waits for memory.
#include <string.h>

#include <algorithm>

#include "elements/lora.h"
#include "elements/lora_codes.h"
#include "runtime/rows.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kNarrow = 8, kPanel = 64;            // rows of A: so many lie by rows, so many of others are a panel

// 16 numbers in the order that is quickest to widen, and that order's ways there and back.
struct Float32 {
    using Type = float;
    static Vec of(const Type* p) { return load(p); }
    static Vec shuffled(Vec x) { return x; }
    static Vec unshuffled(Vec x) { return x; }
};
struct Float16 {
    using Type = uint16_t;
    static Vec of(const Type* p) { return load_half(p); }
    static Vec shuffled(Vec x) { return x; }
    static Vec unshuffled(Vec x) { return x; }
};
struct BFloat16 {
    using Type = uint16_t;
    static Vec of(const Type* p) { return load_bf16_shuffled(reinterpret_cast<const uint8_t*>(p)); }
    static Vec shuffled(Vec x) { return shuffled_bf16(x); }
    static Vec unshuffled(Vec x) { return unshuffled_bf16(x); }
};

// sums [kTokens][16 kVecs] = A . x for a panel of A, which lies column by column: columns in turn go to kParts sums, so that additions wait for
// others. Rows of x are `stride` apart.
template <typename Kind, size_t kVecs, size_t kTokens>
inline void shrink_panel(const typename Kind::Type* a, const float* x, size_t stride, size_t columns, float (*sums)[kMostRank], size_t from) {
    constexpr size_t kParts = kVecs == 1 ? 4 : kVecs == 2 ? 2 : 1, kEach = kVecs * kLanes;
    Vec acc[kTokens][kParts][kVecs];
    for (size_t t = 0; t < kTokens; ++t)
        for (size_t j = 0; j < kParts; ++j)
            for (size_t i = 0; i < kVecs; ++i) acc[t][j][i] = zero();
    const auto add = [&](size_t j, size_t k) {
        Vec by[kTokens];
        for (size_t t = 0; t < kTokens; ++t) by[t] = all(x[t * stride + k]);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kVecs; ++i) {
            const Vec v = Kind::of(a + j * kEach + i * kLanes);
            RIDGELINE_UNROLL
            for (size_t t = 0; t < kTokens; ++t) acc[t][j][i] = fma(v, by[t], acc[t][j][i]);
        }
    };
    size_t k = 0;
    for (; k + kParts <= columns; k += kParts, a += kParts * kEach) {
        fetch_ahead(a, kParts * kEach * sizeof *a);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kParts; ++j) add(j, k + j);
    }
    for (size_t j = 0; k + j < columns; ++j) add(j, k + j);
    for (size_t t = 0; t < kTokens; ++t)
        for (size_t i = 0; i < kVecs; ++i) {
            for (size_t apart = 1; apart < kParts; apart *= 2)
                for (size_t j = 0; j < kParts; j += 2 * apart) acc[t][j][i] = acc[t][j][i] + acc[t][j + apart][i];
            store(&sums[t][from + i * kLanes], Kind::unshuffled(acc[t][0][i]));
        }
}

// acc[r] += a[r] . x by lanes, for kCount rows of A with few rows, which lies in blocks of 16 columns [rank, 16], and some of its columns.
template <typename Kind, size_t kCount>
inline void shrink_rows(const typename Kind::Type* a, size_t rank, const float* x, size_t columns, Vec* acc) {
    Vec own[kCount];
    for (size_t r = 0; r < kCount; ++r) own[r] = acc[r];
    for (size_t i = 0; i < columns; i += kLanes, a += rank * kLanes) {
        const Vec v = load(x + i);
        fetch_ahead(a, kCount * kLanes * sizeof *a);
        RIDGELINE_UNROLL
        for (size_t r = 0; r < kCount; ++r) own[r] = fma(Kind::of(a + r * kLanes), v, own[r]);
    }
    for (size_t r = 0; r < kCount; ++r) acc[r] = own[r];
}

// sums [rank] = A . x of few rows: turn by turn over the columns, each with all rows, so that A is read once and ascending.
template <typename Kind>
inline void shrink_narrow(const typename Kind::Type* a, size_t rank, const float* x, size_t columns, float* sums) {
    constexpr size_t kTurn = 64;
    Vec acc[kNarrow];
    float own[kTurn];
    for (size_t r = 0; r < rank; ++r) acc[r] = zero();
    for (size_t from = 0; from < columns; from += kTurn, x += kTurn, a += kTurn * rank) {
        const size_t here = std::min(kTurn, columns - from);
        for (size_t i = 0; i < here; i += kLanes) store(own + i, Kind::shuffled(i + kLanes <= here ? load(x + i) : load_first(x + i, here - i)));
        size_t r = 0;
        for (; r + 4 <= rank; r += 4) shrink_rows<Kind, 4>(a + r * kLanes, rank, own, here, acc + r);
        for (; r < rank; ++r) shrink_rows<Kind, 1>(a + r * kLanes, rank, own, here, acc + r);
    }
    for (size_t r = 0; r < rank; ++r) sums[r] = sum_of(Kind::unshuffled(acc[r]));
}

// sums [kTokens][rank, of more than kNarrow rows padded to a panel] = A . x
template <typename Kind, size_t kTokens>
inline void shrink_all(const typename Kind::Type* a, size_t rank, const float* x, size_t columns, float (*sums)[kMostRank]) {
    for (size_t t = 0; t < kTokens && rank <= kNarrow; ++t) shrink_narrow<Kind>(a, rank, x + t * columns, columns, sums[t]);
    for (size_t r = 0; r < rank && rank > kNarrow; r += kPanel) {
        const size_t vecs = (std::min(kPanel, rank - r) + kLanes - 1) / kLanes;
        const auto shrink = vecs == 1 ? shrink_panel<Kind, 1, kTokens> : vecs == 2 ? shrink_panel<Kind, 2, kTokens>
                          : vecs == 3 ? shrink_panel<Kind, 3, kTokens> : shrink_panel<Kind, 4, kTokens>;
        shrink(a, x, columns, columns, sums, r);
        a += vecs * kLanes * columns;
    }
}

// out = y + scale * sums . b for B in blocks of 32 columns [rank, 32].
template <typename Kind, size_t kTokens>
inline void expand(const typename Kind::Type* b, size_t rank, const float (*sums)[kMostRank], float by, const float* y, size_t width, float* out) {
    const Vec scale = all(by);
    for (size_t i = 0; i < width; i += 2 * kLanes) {
        Vec first[kTokens], second[kTokens];
        for (size_t t = 0; t < kTokens; ++t) {
            first[t] = second[t] = zero();
            const size_t row = t * width, from = i + kOutputsAhead;
            fetch_outputs(y + row, out + row, from, std::min(from + 2 * kLanes, width));
        }
        for (size_t r = 0; r < rank; ++r, b += 2 * kLanes) {
            fetch_ahead(b, 2 * kLanes * sizeof *b);
            const Vec low = Kind::of(b), high = Kind::of(b + kLanes);
            RIDGELINE_UNROLL
            for (size_t t = 0; t < kTokens; ++t) {
                const Vec sum = all(sums[t][r]);
                first[t] = fma(low, sum, first[t]);
                second[t] = fma(high, sum, second[t]);
            }
        }
        const auto put = [&](size_t t, size_t from, Vec change) {
            const float* of = y + t * width;
            float* to = out + t * width;
            if (from + kLanes <= width) return store(to + from, load(of + from) + change * scale);
            if (from < width) store_first(to + from, load_first(of + from, width - from) + change * scale, width - from);
        };
        for (size_t t = 0; t < kTokens; ++t) {
            put(t, i, Kind::unshuffled(first[t]));
            put(t, i + kLanes, Kind::unshuffled(second[t]));
        }
    }
}

template <typename Kind, size_t kTokens>
void change(const LoraPair& pair, const float* x, const float* y, size_t columns, size_t width, float* out) {
    float sums[kTokens][kMostRank];  // panels are padded, and a rank at the bound fills one
    for (size_t t = 0; t < kTokens; ++t) fetch_outputs(y + t * width, out + t * width, 0, std::min(kOutputsAhead, width));
    shrink_all<Kind, kTokens>(reinterpret_cast<const typename Kind::Type*>(pair.a), pair.rank, x, columns, sums);
    expand<Kind, kTokens>(reinterpret_cast<const typename Kind::Type*>(pair.b), pair.rank, sums, pair.scale, y, width, out);
}

template <size_t kTokens>
void change_rows(const LoraPair& pair, const float* x, const float* y, size_t columns, size_t width, float* out) {
    switch (pair.format) {
        case kF16: return change<Float16, kTokens>(pair, x, y, columns, width, out);
        case kBF16: return change<BFloat16, kTokens>(pair, x, y, columns, width, out);
        case kInt8: return change_by_codes<kTokens>(pair, x, y, columns, width, out);
        default: return change<Float32, kTokens>(pair, x, y, columns, width, out);
    }
}

}  // namespace

void adapters(const Adapters& op, const Step& step, size_t row) { op.out[row] = step.adapter[row]; }

void lora(const Lora& op, const Step&, size_t first, size_t count) {
    const size_t end = first + count;
    for (size_t row = first, next; row < end; row = next) {
        const int32_t slot = op.slots[row];
        const float *x = op.x + row * op.columns, *y = op.y + row * op.width;
        float* out = op.out + row * op.width;
        for (next = row + 1; next < end && op.slots[next] == slot; ) ++next;
        if (slot < 0 || op.pairs[slot].rank == 0) {
            memcpy(out, y, (next - row) * op.width * sizeof *out);
            continue;
        }
        const bool together = next - row >= kTogether;
        next = row + (together ? kTogether : 1);
        (together ? change_rows<kTogether> : change_rows<1>)(op.pairs[slot], x, y, op.columns, op.width, out);
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
