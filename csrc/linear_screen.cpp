// A Q8_0 matrix cut in two, so that the largest outputs of a token can be found from less than all of it (screen.h).
//
// With q = 8 h + l, 0 <= l < 8: first all h, records of 352 bytes a group with the scales of q; then the l, 192 bytes a group; then, for each
// row, an eighth of its bound.
//
// Why bounds hold. Of a row, w = d q and e = d (l - 3.5); of a token, x as its codes and scales s say; G = k / 32 groups, u = 2^-24. The first
// part sees d (8 h + 3.5) x: its codes are h + 16, and 15.5625 times the sum of x's codes is taken off. It leaves out e x, at most |e| |x|.
// What is taken off is rounded to integers, by at most 1/2 twice a group: 8 |d| |s| in all, at most 8 / 127 |d| |x| once |x| is taken no
// smaller than 127 |s|. A sum over G groups is off by at most (G + 2) u |terms|_1, its terms being rounded once and the sum G times (Higham
// 2002, section 3.1), and that is (G + 2) u |w| |x| in the exact kernel and (G + 2) u (|w| + |e| + |d|) |x| here. Adding the bound and
// comparing take less than four roundings of as much. A row's bound has twice all of that. Underflow is left to the threshold (screen.cpp).
#include <math.h>

#include "linear_families.h"
#include "linear_screen_codes.h"
#include "linear_tile.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kWidest = 1 << 14;      // inputs: a joined block is at the end of scratch, and kernels of Q8_0 must not reach it
constexpr size_t kBoundBytes = kLanes * sizeof(float);
constexpr double kLargest = 0x1p90;      // of |x|: |w| < 2^31 whatever fp16 scales, so that no sum overflows

// Where the parts of a matrix are.
struct Parts {
    size_t groups, blocks, high, low, lows, bounds, bytes;
    Parts(size_t n, size_t k) : groups(k / kCodeGroup), blocks((n + kBlockRows - 1) / kBlockRows) {
        high = groups * kHighBytes, low = groups * kLowBytes;
        lows = (blocks * high + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
        bounds = lows + blocks * low;
        bytes = bounds + blocks * kBoundBytes;
    }
    const uint8_t* high_of(const Matrix& matrix, size_t block, size_t group) const { return matrix.data + block * high + group * kHighBytes; }
    const uint8_t* low_of(const Matrix& matrix, size_t block, size_t group) const { return matrix.data + lows + block * low + group * kLowBytes; }
};

size_t packed_bytes(int, size_t n, size_t k, size_t) { return k == 0 || k % kCodeGroup != 0 || k > kWidest ? 0 : Parts(n, k).bytes; }

// What makes up the bounds of 16 rows: squares of e, w and d.
struct Squares {
    double e[kLanes] = {}, w[kLanes] = {}, d[kLanes] = {};

    void add(const uint8_t* record) {
        uint32_t low[kQuadBytes] = {}, lows[kQuadBytes] = {}, wholes[kQuadBytes] = {};
        for (size_t t = 0; t < kGroupQuads; ++t)
            for (size_t i = 0; i < kQuadBytes; ++i) {
                const int32_t code = record[t * kQuadBytes + i], whole = code - Q8_0::kZero;
                low[i] += static_cast<uint32_t>(code & 7), lows[i] += static_cast<uint32_t>((code & 7) * (code & 7));
                wholes[i] += static_cast<uint32_t>(whole * whole);
            }
        float scale[kLanes];
        store(scale, load_half(record + Q8_0::Coding::kBytes));
        for (size_t r = 0; r < kLanes; ++r) {
            double sum = 0.0, squares = 0.0, whole = 0.0;
            for (size_t i = 4 * r; i < 4 * r + 4; ++i) sum += low[i], squares += lows[i], whole += wholes[i];
            const double square = static_cast<double>(scale[r]) * scale[r];
            e[r] += square * (squares - 7.0 * sum + 12.25 * kCodeGroup);  // all of it exact but for the product
            w[r] += square * whole, d[r] += square;
        }
    }

    // Eighths of the bounds, rounded up.
    void write(size_t k, float* bounds) const {
        const double rounding = (static_cast<double>(k / kCodeGroup) + 8.0) * 0x1p-23;
        for (size_t r = 0; r < kLanes; ++r) {
            const double left = sqrt(e[r]), scales = sqrt(d[r]);
            const double whole = left + 8.0 / 127.0 * scales + rounding * (2.0 * sqrt(w[r]) + left + scales);
            bounds[r] = static_cast<float>(0.125 * whole * (1.0 + 0x1p-20));
        }
    }
};

void pack_block(const Matrix& matrix, const Parts& parts, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t block) {
    const size_t left = matrix.n - block * kBlockRows;
    Squares squares;
    for (size_t g = 0; g < parts.groups; ++g) {
        uint8_t record[kRecordBytes<Q8_0>];
        const Matrix one = {kQ8_0, left < kBlockRows ? left : kBlockRows, kCodeGroup, 0, record};
        kGroups32.pack(one, rows + block * kBlockRows * row_bytes + g * Q8_0::kFileBytes, row_bytes, record, 0, 1);
        cut_record(record, packed + block * parts.high + g * kHighBytes, packed + parts.lows + block * parts.low + g * kLowBytes);
        squares.add(record);
    }
    float bounds[kLanes];
    squares.write(matrix.k, bounds);
    memcpy(packed + parts.bounds + block * kBoundBytes, bounds, kBoundBytes);
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    const Parts parts(matrix.n, matrix.k);
    for (size_t block = first; block < first + count; ++block) pack_block(matrix, parts, rows, row_bytes, packed, block);
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    const Parts parts(matrix.n, matrix.k);
    for (size_t block = first; block < first + count; ++block) {
        const size_t left = matrix.n - block * kBlockRows;
        for (size_t g = 0; g < parts.groups; ++g) {
            uint8_t record[kRecordBytes<Q8_0>];
            join_record(parts.high_of(matrix, block, g), parts.low_of(matrix, block, g), record);
            const Matrix one = {kQ8_0, left < kBlockRows ? left : kBlockRows, kCodeGroup, 0, record};
            kGroups32.unpack(one, rows + block * kBlockRows * row_bytes + g * Q8_0::kFileBytes, row_bytes, 0, 1);
        }
    }
}

// h + 16 as kernels take it: of few tokens, whose sums are offsets; of many.
struct FewOffsets : ScaledGroup<HighCodes, 1, 0> {};
struct High : ScaledGroup<HighCodes, 16, 0> {};

#if defined(__AVX512VNNI__)
constexpr size_t kTile = 12;
#elif defined(__AVX2__)
constexpr size_t kTile = 4;
#else
constexpr size_t kTile = 1;
#endif

// Sum of products of a part's codes with those of a token.
template <class Part>
inline Ints product_of(const uint8_t* part, const int8_t* codes, Ints sum) {
    constexpr int kBits = Part::kBits;
    RIDGELINE_UNROLL
    for (size_t run = 0; run < kGroupQuads; run += kRun<kBits>) {
        Pairs pairs = no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kRun<kBits>; ++t) pairs = products<kBits>(pairs, Part::quad(part, t), codes + 4 * t);
        sum = sum + widen<kBits>(pairs);
    }
    return sum;
}

// All outputs of a block for one token, straight from both parts: the integers of Q8_0. What is ahead is fetched where the next block follows.
template <bool kFollowed>
void multiply_token(const uint8_t* high, const uint8_t* low, const Tokens& x, float* out, size_t columns) {
    Vec acc = zero();
    for (size_t g = 0; g < x.groups; ++g, high += kHighBytes, low += kLowBytes) {
        if (kFollowed) fetch(high + kAhead, kHighBytes), fetch(low + kAhead, kLowBytes);
        const int8_t* codes = x.codes + g * kCodeGroup;
        Ints dot = product_of<HighCodes>(high, codes, ints(-Q8_0::kZero / 8 * (x.sums[2 * g] + x.sums[2 * g + 1])));
        dot = dot + dot, dot = dot + dot, dot = dot + dot;
        dot = product_of<LowCodes>(low, codes, dot);
        acc = add_part(acc, floats(dot), load_half(high + HighCodes::kBytes), x.scales[g]);
    }
    write(acc, out, columns);
}

// A block of Q8_0.
void join_block(const Parts& parts, const uint8_t* high, const uint8_t* low, uint8_t* to) {
    for (size_t g = 0; g < parts.groups; ++g, high += kHighBytes, low += kLowBytes, to += kRecordBytes<Q8_0>) {
        fetch(high + kAhead, kHighBytes);
        fetch(low + kAhead, kLowBytes);
        join_record(high, low, to);
    }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Neither is inlined: beside products their masks would take those registers.
__attribute__((noinline)) void expand_high(const uint8_t* high, uint8_t* to) { expand_group<High>(high, high, to); }

// What expand_group makes of Q8_0. Bytes less 128 as 16-bit integers take fewer shifts than those of signed bytes.
__attribute__((noinline)) void expand_whole(const uint8_t* high, const uint8_t* low, uint8_t* to) {
    const __m256i byte = _mm256_set1_epi16(0xff), centre = _mm256_set1_epi16(Q8_0::kZero);
    const auto even = [&](__m256i codes) { return _mm256_sub_epi16(_mm256_and_si256(codes, byte), centre); };
    const auto odd = [&](__m256i codes) { return _mm256_sub_epi16(_mm256_srli_epi16(codes, 8), centre); };
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads; ++t) {
        const Quad w = whole_quad(high, low, t);
        store_quad(to + 2 * t * kQuadBytes, {even(w.a), even(w.b)});
        store_quad(to + (2 * t + 1) * kQuadBytes, {odd(w.a), odd(w.b)});
    }
    store(reinterpret_cast<float*>(to + Expanded<Q8_0>::kCodes), load_half(high + HighCodes::kBytes));
}

// As multiply_panel: expand(block, group, to) makes what tokens meet, finish(block, outputs [m, 16]) takes sums of a block; `change` alters
// the prepared tokens.
template <class F, class Change, class Expand, class Finish>
inline void panel_of(const Tokens& x, size_t m, size_t first, size_t count, uint8_t* scratch, const Change& change, const Expand& expand,
                     const Finish& finish) {
    using E = Expanded<F>;
    uint8_t *expanded = scratch, *prepared = scratch + E::kGroup;
    const size_t whole = m / kTileTokens, rest = m % kTileTokens, tiles = whole + (rest > 0);
    float* acc = reinterpret_cast<float*>(prepared + x.groups * tiles * E::kTile);
    prepare<F>(x, m, prepared);
    for (uint8_t* tile = prepared; tile < reinterpret_cast<uint8_t*>(acc); tile += E::kTile) change(tile);
    for (size_t block = first; block < first + count; ++block) {
        const uint8_t* tile = prepared;
        memset(acc, 0, m * kLanes * 4);
        for (size_t g = 0; g < x.groups; ++g) {
            expand(block, g, expanded);
            for (size_t i = 0; i < whole; ++i, tile += E::kTile) add_group<F, kTileTokens>(expanded, tile, acc + i * kTileTokens * kLanes);
            if (rest == 0) continue;
            add_group_of<F, kTileTokens - 1>(rest, expanded, tile, acc + whole * kTileTokens * kLanes);
            tile += E::kTile;
        }
        finish(block, acc);
    }
}

void multiply_panel(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t m, const Product& to, size_t first, size_t count,
                    uint8_t* scratch) {
    const auto expand = [&](size_t block, size_t g, uint8_t* expanded) {
        const uint8_t *high = parts.high_of(matrix, block, g), *low = parts.low_of(matrix, block, g);
        foresee(high + kForeseen, kHighBytes);
        foresee(low + kForeseen, kLowBytes);
        expand_whole(high, low, expanded);
    };
    const auto finish = [&](size_t block, const float* outputs) {
        const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
        for (size_t i = 0; i < m; ++i) write(load(outputs + i * kLanes), to.out + i * to.stride + block * kBlockRows, columns);
    };
    panel_of<Q8_0>(x, m, first, count, scratch, [](uint8_t*) {}, expand, finish);
}
#endif

// All outputs. Without panels blocks are joined first.
void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    const Parts parts(matrix.n, matrix.k);
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (const size_t panel = panel_tokens<Q8_0>(matrix.k); m > 1 && panel > 0) {
        for (size_t from = 0; from < m; from += panel) {
            const Product part = {to.out + from * to.stride, to.stride};
            multiply_panel(matrix, parts, tokens(x, matrix.k, from), m - from < panel ? m - from : panel, part, first, count, scratch);
        }
        return;
    }
#endif
    uint8_t* joined = scratch + kLinearScratch - 2 * kAhead - block_bytes<Q8_0>(matrix.k);  // kernels fetch what lies ahead
    for (size_t block = first; block < first + count; ++block) {
        const uint8_t *high = parts.high_of(matrix, block, 0), *low = parts.low_of(matrix, block, 0);
        const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
        float* out = to.out + block * kBlockRows;
        if (m == 1) {
            count > 1 ? multiply_token<true>(high, low, tokens(x, matrix.k, 0), out, columns)
                      : multiply_token<false>(high, low, tokens(x, matrix.k, 0), out, columns);
        } else {
            join_block(parts, high, low, joined);
            kGroups32.multiply({kQ8_0, columns, matrix.k, 0, joined}, x, m, {out, to.stride}, 0, 1, scratch);
        }
    }
}

void row(const Matrix& matrix, size_t row, float* out) {
    const Parts parts(matrix.n, matrix.k);
    const size_t block = row / kBlockRows;
    for (size_t g = 0; g < parts.groups; ++g) {
        uint8_t record[kRecordBytes<Q8_0>];
        join_record(parts.high_of(matrix, block, g), parts.low_of(matrix, block, g), record);
        kGroups32.row({kQ8_0, kBlockRows, kCodeGroup, 0, record}, row % kBlockRows, out + g * kCodeGroup);
    }
}

// What is taken off a sum of products with h + 16: 15.5625 times the sum of codes.
inline int32_t offset(int32_t sum) { return (249 * sum + 8) >> 4; }

// Bounds of one block for some tokens from their outputs [tokens, 16]. Returns `test`, NaN once a bound was not finite.
inline Vec bound_block(const Screening& of, const float* bounds, size_t first, size_t block, size_t from, size_t m, const float* outputs,
                       Vec test) {
    const Vec bound = load(bounds + block * kLanes);
    const float* sizes = of.sizes + from;
    float *to = of.bounds + (block - first) * of.tokens + from, *best = of.best + from;
    for (size_t i = 0; i < m; ++i) {
        const Vec most = fma(bound, all(sizes[i]), load(outputs + i * kLanes));
        test = fma(most, zero(), test);
        to[i] = largest_of(most);
    }
    for (size_t i = 0; i < m; ++i)
        if (to[i] > best[i]) best[i] = to[i], of.where[from + i] = static_cast<int32_t>(block);
    return test;
}

Vec screen_directly(const Matrix& matrix, const Tokens& x, size_t m, size_t first, size_t count, const Screening& of,
                    const float* bounds) {
    const size_t bytes = block_bytes<High>(matrix.k);
    float outputs[kTile * kLanes];
    Vec test = zero();
    for (size_t block = first; block < first + count; ++block)
        for (size_t from = 0; from < m; from += kTile) {
            const size_t here = m - from < kTile ? m - from : kTile;
            const Tokens part = {x.codes + from * x.stride, x.scales + from * x.groups, x.sums + from * x.groups * 2, x.stride, x.groups};
            direct<FewOffsets, kTile>(here, matrix.data + block * bytes, matrix.k, part, outputs, kLanes, kLanes);
            test = bound_block(of, bounds, first, block, from, here, outputs, test);
        }
    return test;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
Vec screen_panel(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t from, size_t m, size_t first, size_t count, uint8_t* scratch,
                 const Screening& of, const float* bounds) {
    Vec test = zero();
    const auto change = [](uint8_t* tile) {  // -16 times a sum, less 7 / 256 of that: -15.5625 times it
        __m128i* totals = reinterpret_cast<__m128i*>(tile + Expanded<High>::kTotals);
        const __m128i sixteen = _mm_loadu_si128(totals);
        _mm_storeu_si128(totals, _mm_sub_epi16(sixteen, _mm_mulhrs_epi16(sixteen, _mm_set1_epi16(896))));
    };
    const auto expand = [&](size_t block, size_t g, uint8_t* expanded) {
        const uint8_t* high = parts.high_of(matrix, block, g);
        foresee(high + kForeseen, kHighBytes);
        expand_high(high, expanded);
    };
    const auto finish = [&](size_t block, const float* outputs) { test = bound_block(of, bounds, first, block, from, m, outputs, test); };
    panel_of<High>(x, m, first, count, scratch, change, expand, finish);
    return test;
}
#endif

}  // namespace

void measure_token(const Codes& x, size_t k, size_t token, const Screening& of) {
    const size_t groups = k / kCodeGroup;
    double squares = 0.0, scales = 0.0;
    for (size_t g = 0; g < groups; ++g) {
        const int8_t* codes = x.codes + token * x.stride + g * kCodeGroup;
        const double scale = x.scales[token * groups + g];
        int32_t whole = 0;
        for (size_t i = 0; i < kCodeGroup; ++i) whole += codes[i] * codes[i];
        squares += scale * scale * whole, scales += scale * scale;
        const int32_t* sums = x.sums + (token * groups + g) * 2;
        int32_t* offsets = of.offsets + (token * groups + g) * 2;
        offsets[0] = offset(sums[0] + sums[1]), offsets[1] = 0;
    }
    const double within = 127.0 * 127.0 * scales, size = sqrt(squares > within ? squares : within) * (1.0 + 0x1p-20);
    of.sizes[token] = size <= kLargest ? static_cast<float>(size) : NAN;
}

bool screen(const Matrix& matrix, const Codes& x, const Screening& of, size_t first, size_t count, uint8_t* scratch) {
    const Parts parts(matrix.n, matrix.k);
    const float* bounds = reinterpret_cast<const float*>(matrix.data + parts.bounds);
    const size_t m = of.tokens;
    for (size_t i = 0; i < m; ++i) of.best[i] = -INFINITY, of.where[i] = static_cast<int32_t>(first);
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (const size_t panel = panel_tokens<High>(matrix.k); m > kTile && panel > 0) {
        Vec test = zero();
        for (size_t from = 0; from < m; from += panel) {
            const size_t here = m - from < panel ? m - from : panel;
            test = test + screen_panel(matrix, parts, tokens(x, matrix.k, from), from, here, first, count, scratch, of, bounds);
        }
        return sum_of(test) == 0.0f;
    }
#endif
    (void)scratch;
    return sum_of(screen_directly(matrix, {x.codes, x.scales, of.offsets, x.stride, parts.groups}, m, first, count, of, bounds)) == 0.0f;
}

const FamilyKernels kScreened = {packed_bytes, pack, unpack, multiply, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
