// Changes of products by adapters: low-rank pairs of matrices, one row per call, each with the pair of its own slot.
//
// An output has one accumulator and the order of its sums depends on the pair alone, so company changes no bit. Both matrices are read once,
// ascending: with a few tokens this waits for memory.
#include <string.h>

#include "runtime/rows.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kMostRank = 256;
constexpr size_t kRows = 4, kWide = 8;   // rows of A that share a turn over x, rows of B that share one over outputs

struct Float32 {
    using Type = float;
    static Vec of(const Type* p) { return load(p); }
};
struct Float16 {
    using Type = uint16_t;
    static Vec of(const Type* p) { return load_half(p); }
};
struct BFloat16 {
    using Type = uint16_t;
    static Vec of(const Type* p) { return load_bf16(p); }
};

// The first n lanes, the others zero.
template <typename Kind>
inline Vec take(const typename Kind::Type* p, size_t n) {
    if (n == kLanes) return Kind::of(p);
    typename Kind::Type part[kLanes] = {};
    memcpy(part, p, n * sizeof *p);
    return Kind::of(part);
}

// sums[r] = a[r] . x for kCount rows of A
template <typename Kind, size_t kCount>
inline void shrink(const typename Kind::Type* a, const float* x, size_t columns, float* sums) {
    Vec acc[kCount];
    for (size_t r = 0; r < kCount; ++r) acc[r] = zero();
    size_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
        const Vec v = load(x + i);
        for (size_t r = 0; r < kCount; ++r) acc[r] = fma(Kind::of(a + r * columns + i), v, acc[r]);
    }
    if (i < columns) {
        const Vec v = load_first(x + i, columns - i);
        for (size_t r = 0; r < kCount; ++r) acc[r] = fma(take<Kind>(a + r * columns + i, columns - i), v, acc[r]);
    }
    for (size_t r = 0; r < kCount; ++r) sums[r] = sum_of(acc[r]);
}

// out += sums[r] * b[r] for kCount rows of B, one behind the other; zeros before the first.
template <typename Kind, size_t kCount>
inline void expand(const typename Kind::Type* b, const float* sums, size_t width, bool first, float* out) {
    Vec by[kCount];
    for (size_t r = 0; r < kCount; ++r) by[r] = all(sums[r]);
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        Vec acc = first ? zero() : load(out + i);
        for (size_t r = 0; r < kCount; ++r) acc = fma(Kind::of(b + r * width + i), by[r], acc);
        store(out + i, acc);
    }
    if (i < width) {
        const size_t n = width - i;
        Vec acc = first ? zero() : load_first(out + i, n);
        for (size_t r = 0; r < kCount; ++r) acc = fma(take<Kind>(b + r * width + i, n), by[r], acc);
        store_first(out + i, acc, n);
    }
}

template <typename Kind>
void change(const LoraPair& pair, const float* x, const float* y, size_t columns, size_t width, float* out) {
    const auto* a = reinterpret_cast<const typename Kind::Type*>(pair.a);
    const auto* b = reinterpret_cast<const typename Kind::Type*>(pair.b);
    float sums[kMostRank];
    size_t r = 0;
    for (; r + kRows <= pair.rank; r += kRows) shrink<Kind, kRows>(a + r * columns, x, columns, sums + r);
    for (; r < pair.rank; ++r) shrink<Kind, 1>(a + r * columns, x, columns, sums + r);
    for (r = 0; r + kWide <= pair.rank; r += kWide) expand<Kind, kWide>(b + r * width, sums + r, width, r == 0, out);
    for (; r < pair.rank; ++r) expand<Kind, 1>(b + r * width, sums + r, width, r == 0, out);
    const Vec scale = all(pair.scale);
    for (size_t i = 0; i < width; i += kLanes) {
        const size_t n = width - i < kLanes ? width - i : kLanes;
        if (n == kLanes) store(out + i, load(y + i) + load(out + i) * scale);
        else store_first(out + i, load_first(y + i, n) + load_first(out + i, n) * scale, n);
    }
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
