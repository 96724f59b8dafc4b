// Changes of products by adapters: low-rank pairs of matrices, one row per call, each with the pair of its own slot.
//
// An output has one accumulator and the order of its sums depends on the pair alone, so company changes no bit. Both matrices lie in the
// order in which they are read, once and ascending: with a few tokens this waits for memory.
#include <string.h>

#include <algorithm>

#include "runtime/rows.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kMostRank = 256;
constexpr size_t kNarrow = 8, kPanel = 64;            // rows of A: so many lie by rows, so many of others are a panel
constexpr size_t kLine = 64;
constexpr size_t kAhead = sizeof(Part) == sizeof(Vec) ? 8192 : 4096;  // bytes of matrices asked for ahead: a core reads as fast as it has lines under way
constexpr size_t kOutputsAhead = 512;    // outputs: other cores have written half of them

// Asks for the lines that begin in [p, p + bytes), where p is aligned to what is asked for at once.
inline void fetch(const void* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(static_cast<const char*>(p) + i);
}
inline void fetch_outputs(const float* y, float* out, size_t from, size_t until) {
    for (size_t i = from; i < until; i += kLine / sizeof(float)) {
        __builtin_prefetch(y + i);
        __builtin_prefetch(out + i, 1);
    }
}

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

// sums [16 kVecs] = A . x for a panel of A, which lies column by column: columns in turn go to kParts sums, so that additions wait for others.
template <typename Kind, size_t kVecs>
inline void shrink_panel(const typename Kind::Type* a, const float* x, size_t columns, float* sums) {
    constexpr size_t kParts = kVecs == 1 ? 4 : kVecs == 2 ? 2 : 1, kEach = kVecs * kLanes;
    Vec acc[kParts][kVecs];
    for (size_t j = 0; j < kParts; ++j)
        for (size_t i = 0; i < kVecs; ++i) acc[j][i] = zero();
    const auto add = [&](size_t j, float by) {
        const Vec v = all(by);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kVecs; ++i) acc[j][i] = fma(Kind::of(a + j * kEach + i * kLanes), v, acc[j][i]);
    };
    size_t k = 0;
    for (; k + kParts <= columns; k += kParts, a += kParts * kEach) {
        fetch(reinterpret_cast<const char*>(a) + kAhead, kParts * kEach * sizeof *a);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kParts; ++j) add(j, x[k + j]);
    }
    for (size_t j = 0; k + j < columns; ++j) add(j, x[k + j]);
    for (size_t i = 0; i < kVecs; ++i) {
        for (size_t apart = 1; apart < kParts; apart *= 2)
            for (size_t j = 0; j < kParts; j += 2 * apart) acc[j][i] = acc[j][i] + acc[j + apart][i];
        store(sums + i * kLanes, Kind::unshuffled(acc[0][i]));
    }
}

// acc[r] += a[r] . x by lanes, for kCount rows of A with few rows, which lies in blocks of 16 columns [rank, 16], and some of its columns.
template <typename Kind, size_t kCount>
inline void shrink_rows(const typename Kind::Type* a, size_t rank, const float* x, size_t columns, Vec* acc) {
    Vec own[kCount];
    for (size_t r = 0; r < kCount; ++r) own[r] = acc[r];
    for (size_t i = 0; i < columns; i += kLanes, a += rank * kLanes) {
        const Vec v = load(x + i);
        fetch(reinterpret_cast<const char*>(a) + kAhead, kCount * kLanes * sizeof *a);
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

// sums [rank, of more than kNarrow rows padded to a panel] = A . x
template <typename Kind>
inline void shrink_all(const typename Kind::Type* a, size_t rank, const float* x, size_t columns, float* sums) {
    if (rank <= kNarrow) return shrink_narrow<Kind>(a, rank, x, columns, sums);
    for (size_t r = 0; r < rank; r += kPanel) {
        const size_t vecs = (std::min(kPanel, rank - r) + kLanes - 1) / kLanes;
        const auto shrink = vecs == 1 ? shrink_panel<Kind, 1> : vecs == 2 ? shrink_panel<Kind, 2> : vecs == 3 ? shrink_panel<Kind, 3> : shrink_panel<Kind, 4>;
        shrink(a, x, columns, sums + r);
        a += vecs * kLanes * columns;
    }
}

// out = y + scale * sums . b for B in blocks of 32 columns [rank, 32].
template <typename Kind>
inline void expand(const typename Kind::Type* b, size_t rank, const float* sums, float by, const float* y, size_t width, float* out) {
    const Vec scale = all(by);
    for (size_t i = 0; i < width; i += 2 * kLanes) {
        Vec first = zero(), second = zero();
        fetch_outputs(y, out, i + kOutputsAhead, std::min(i + kOutputsAhead + 2 * kLanes, width));
        for (size_t r = 0; r < rank; ++r, b += 2 * kLanes) {
            fetch(reinterpret_cast<const char*>(b) + kAhead, 2 * kLanes * sizeof *b);
            const Vec sum = all(sums[r]);
            first = fma(Kind::of(b), sum, first);
            second = fma(Kind::of(b + kLanes), sum, second);
        }
        const auto put = [&](size_t from, Vec change) {
            if (from + kLanes <= width) return store(out + from, load(y + from) + change * scale);
            if (from < width) store_first(out + from, load_first(y + from, width - from) + change * scale, width - from);
        };
        put(i, Kind::unshuffled(first));
        put(i + kLanes, Kind::unshuffled(second));
    }
}

template <typename Kind>
void change(const LoraPair& pair, const float* x, const float* y, size_t columns, size_t width, float* out) {
    float sums[kMostRank];  // panels are padded, and a rank at the bound fills one
    fetch_outputs(y, out, 0, std::min(kOutputsAhead, width));
    shrink_all<Kind>(reinterpret_cast<const typename Kind::Type*>(pair.a), pair.rank, x, columns, sums);
    expand<Kind>(reinterpret_cast<const typename Kind::Type*>(pair.b), pair.rank, sums, pair.scale, y, width, out);
}

}  // namespace

void adapters(const Adapters& op, const Step& step, size_t row) { op.out[row] = step.adapter[row]; }

void lora(const Lora& op, const Step&, size_t row) {
    const float *x = op.x + row * op.columns, *y = op.y + row * op.width;
    float* out = op.out + row * op.width;
    const int32_t slot = op.slots[row];
    if (slot < 0 || op.pairs[slot].rank == 0) {
        memcpy(out, y, op.width * sizeof *out);
        return;
    }
    const LoraPair& pair = op.pairs[slot];
    switch (pair.format) {
        case kF16: return change<Float16>(pair, x, y, op.columns, op.width, out);
        case kBF16: return change<BFloat16>(pair, x, y, op.columns, op.width, out);
        default: return change<Float32>(pair, x, y, op.columns, op.width, out);
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
