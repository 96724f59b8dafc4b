// A Q8_0 matrix and what finds the largest outputs of a token from less than all of it (screen.h).
//
// First the matrix as any of Q8_0. Then, with q = 8 h + l, 0 <= l < 8, all h: records of 352 bytes a group with the scales of q. Then, for each
// row, an eighth of its bound. The h stand beside the q: cut in two the matrix would take as little memory as before, but 8 bits that are put
// together again make products of 2 to 8 tokens slower.
//
// Why bounds hold. Of a row, w = d q and e = d (l - 3.5); of a token, x as its codes and scales s say; G = k / 32 groups, u = 2^-24. The screen
// sees d (8 h + 3.5) x: its codes are h + 16, and 15.5625 times the sum of x's codes is taken off. It leaves out e x, at most |e| |x|.
// What is taken off is rounded to integers, by at most 1/2 twice a group: 8 |d| |s| in all, at most 8 / 127 |d| |x| once |x| is taken no
// smaller than 127 |s|. A sum over G groups is off by at most (G + 2) u |terms|_1, its terms being rounded once and the sum G times (Higham
// 2002, section 3.1), and that is (G + 2) u |w| |x| in the exact kernel and (G + 2) u (|w| + |e| + |d|) |x| here. Adding the bound and
// comparing take less than four roundings of as much. A row's bound has twice all of that. Underflow is left to the threshold (screen.cpp).
#include <math.h>

#include "linear/families.h"
#include "linear/screen_codes.h"
#include "linear/tile.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kFewTokens = 3;         // straight from records: more are worth what is expanded
constexpr size_t kBoundBytes = kLanes * sizeof(float);
constexpr double kLargest = 0x1p90;      // of |x|: |w| < 2^31 whatever fp16 scales, so that no sum overflows

// Where the parts of a matrix are.
struct Parts {
    size_t groups, blocks, whole, high, highs, bounds, bytes;
    Parts(size_t n, size_t k) : groups(k / kCodeGroup), blocks((n + kBlockRows - 1) / kBlockRows) {
        whole = block_bytes<Q8_0>(k), high = groups * kHighBytes;
        highs = (blocks * whole + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
        bounds = (highs + blocks * high + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
        bytes = bounds + blocks * kBoundBytes;
    }
    const uint8_t* high_of(const Matrix& matrix, size_t block) const { return matrix.data + highs + block * high; }
};

// The first part.
Matrix whole_of(const Matrix& matrix) { return {kQ8_0, matrix.n, matrix.k, 0, matrix.data}; }

size_t packed_bytes(int, size_t n, size_t k, size_t) { return k == 0 || k % kCodeGroup != 0 ? 0 : Parts(n, k).bytes; }

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

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    const Parts parts(matrix.n, matrix.k);
    kGroups32.pack(whole_of(matrix), rows, row_bytes, packed, first, count);
    for (size_t block = first; block < first + count; ++block) {
        Squares squares;
        for (size_t g = 0; g < parts.groups; ++g) {
            const uint8_t* record = packed + block * parts.whole + g * kRecordBytes<Q8_0>;
            write_high(record, packed + parts.highs + block * parts.high + g * kHighBytes);
            squares.add(record);
        }
        float bounds[kLanes];
        squares.write(matrix.k, bounds);
        memcpy(packed + parts.bounds + block * kBoundBytes, bounds, kBoundBytes);
    }
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    kGroups32.unpack(whole_of(matrix), rows, row_bytes, first, count);
}

void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    kGroups32.multiply(whole_of(matrix), x, m, to, first, count, scratch);
}

void row(const Matrix& matrix, size_t row, float* out) { kGroups32.row(whole_of(matrix), row, out); }

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
    for (size_t i = 0; i < m; ++i) best[i] = to[i] > best[i] ? to[i] : best[i];
    return test;
}

Vec screen_directly(const Matrix& matrix, const Tokens& x, size_t m, size_t first, size_t count, const Screening& of,
                    const float* bounds) {
    const Parts parts(matrix.n, matrix.k);
    float outputs[kTile * kLanes];
    Vec test = zero();
    const size_t apart = blocks_apart(m, count), rest = first + kStreams * apart;
    for (size_t block = first; block < first + apart; ++block) {
        Vec acc[kStreams];
        for (Vec& sum : acc) sum = zero();
        add_records<FewOffsets, 1, kStreams>(parts.high_of(matrix, block), apart * parts.high, matrix.k, x, acc);
        for (size_t i = 0; i < kStreams; ++i) {
            store(outputs, acc[i]);
            test = bound_block(of, bounds, first, block + i * apart, 0, 1, outputs, test);
        }
    }
    for (size_t block = rest; block < first + count; ++block)
        for (size_t from = 0; from < m; from += kTile) {
            const size_t here = m - from < kTile ? m - from : kTile;
            const Tokens part = {x.codes + from * x.stride, x.scales + from * x.groups, x.sums + from * x.groups * 2, x.stride, x.groups};
            direct<FewOffsets, kTile>(here, parts.high_of(matrix, block), matrix.k, part, outputs, kLanes, kLanes);
            test = bound_block(of, bounds, first, block, from, here, outputs, test);
        }
    return test;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Not inlined: beside products its masks would take those registers.
__attribute__((noinline)) void expand_high(const uint8_t* high, uint8_t* to) { expand_group<High>(high, high, to); }

// As multiply_panel, with offsets in place of 16 times the sums, and bounds in place of outputs.
Vec screen_panel(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t from, size_t m, size_t first, size_t count, uint8_t* scratch,
                 const Screening& of, const float* bounds) {
    using E = Expanded<High>;
    uint8_t *expanded = scratch, *prepared = scratch + E::kGroup;
    const size_t whole = m / kTileTokens, rest = m % kTileTokens, tiles = whole + (rest > 0);
    float* acc = reinterpret_cast<float*>(prepared + x.groups * tiles * E::kTile);
    prepare<High>(x, m, prepared);
    for (uint8_t* tile = prepared; tile < reinterpret_cast<uint8_t*>(acc); tile += E::kTile) {
        __m128i* totals = reinterpret_cast<__m128i*>(tile + E::kTotals);
        const __m128i sixteen = _mm_loadu_si128(totals);  // -16 times a sum: less 7 / 256 of that -15.5625 times it
        _mm_storeu_si128(totals, _mm_sub_epi16(sixteen, _mm_mulhrs_epi16(sixteen, _mm_set1_epi16(896))));
    }
    Vec test = zero();
    for (size_t block = first; block < first + count; ++block) {
        const uint8_t *tile = prepared, *high = parts.high_of(matrix, block);
        memset(acc, 0, m * kLanes * 4);
        for (size_t g = 0; g < x.groups; ++g, high += kHighBytes) {
            foresee(high + kForeseen, kHighBytes);
            expand_high(high, expanded);
            for (size_t i = 0; i < whole; ++i, tile += E::kTile) add_group<High, kTileTokens>(expanded, tile, acc + i * kTileTokens * kLanes);
            if (rest == 0) continue;
            add_group_of<High, kTileTokens - 1>(rest, expanded, tile, acc + whole * kTileTokens * kLanes);
            tile += E::kTile;
        }
        test = bound_block(of, bounds, first, block, from, m, acc, test);
    }
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
    for (size_t i = 0; i < m; ++i) of.best[i] = -INFINITY;
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (const size_t panel = panel_tokens<High>(matrix.k); m > kFewTokens && panel > 0) {
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
