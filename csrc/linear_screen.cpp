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

constexpr size_t kWidest = 8192;         // inputs: joined blocks and what kernels of Q8_0 prepare have half of a thread's scratch each
constexpr size_t kJoinedBytes = kLinearScratch / 2, kMostJoined = 16, kFewTokens = 8;
constexpr size_t kBoundBytes = kLanes * sizeof(float);
constexpr double kLargest = 0x1p90;      // of |x|: |w| < 2^30 whatever fp16 scales, so that no sum overflows

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

// A block of Q8_0.
void join_block(const Matrix& matrix, const Parts& parts, size_t block, uint8_t* to) {
    const uint8_t *high = parts.high_of(matrix, block, 0), *low = parts.low_of(matrix, block, 0);
    for (size_t g = 0; g < parts.groups; ++g, high += kHighBytes, low += kLowBytes, to += kRecordBytes<Q8_0>) {
        fetch(high + kAhead, kHighBytes);
        fetch(low + kAhead, kLowBytes);
        join_record(high, low, to);
    }
}

#if defined(__AVX512VNNI__)
constexpr size_t kTile = 12;
#elif defined(__AVX2__)
constexpr size_t kTile = 4;
#else
constexpr size_t kTile = 1;
#endif

// Sums of products of a part's codes with those of M tokens.
template <class Codes, int M>
inline void add_products(const uint8_t* part, const int8_t* codes, size_t stride, Ints* dot) {
    constexpr size_t kSteps = kRun<Codes::kBits>;
    RIDGELINE_UNROLL
    for (size_t run = 0; run < kGroupQuads; run += kSteps) {
        Pairs pairs[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kSteps; ++t) {
            const Quad w = Codes::quad(part, t);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) pairs[i] = products<Codes::kBits>(pairs[i], w, codes + i * stride + 4 * t);
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) dot[i] = dot[i] + widen<Codes::kBits>(pairs[i]);
    }
}

// All outputs of a block for M tokens, straight from both parts: the integers of Q8_0.
template <int M>
void whole_block(const uint8_t* high, const uint8_t* low, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    Vec acc[M];
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    for (size_t g = 0; g < k / kCodeGroup; ++g, high += kHighBytes, low += kLowBytes) {
        fetch(high + kAhead, kHighBytes);
        fetch(low + kAhead, kLowBytes);
        const int8_t* codes = x.codes + g * kCodeGroup;
        Ints dot[M];
        for (size_t i = 0; i < M; ++i) {
            const int32_t* s = x.sums + (i * x.groups + g) * 2;
            dot[i] = ints(-Q8_0::kZero / 8 * (s[0] + s[1]));
        }
        add_products<HighCodes, M>(high, codes, x.stride, dot);
        for (size_t i = 0; i < M; ++i) dot[i] = dot[i] + dot[i], dot[i] = dot[i] + dot[i], dot[i] = dot[i] + dot[i];
        add_products<LowCodes, M>(low, codes, x.stride, dot);
        const Vec scale = load_half(high + HighCodes::kBytes);
        for (size_t i = 0; i < M; ++i) acc[i] = add_part(acc[i], floats(dot[i]), scale, x.scales[i * x.groups + g]);
    }
    for (size_t i = 0; i < M; ++i) write(acc[i], out + i * out_stride, columns);
}

template <int M>
void whole(size_t m, const uint8_t* high, const uint8_t* low, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return whole<M - 1>(m, high, low, k, x, out, out_stride, columns);
    whole_block<M>(high, low, k, x, out, out_stride, columns);
}

// All outputs. Of many tokens: the kernels of Q8_0, on blocks that were joined before.
void multiply(const Matrix& matrix, const Codes& x, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    const Parts parts(matrix.n, matrix.k);
    const size_t bytes = block_bytes<Q8_0>(matrix.k), room = kJoinedBytes / bytes, most = room < kMostJoined ? room : kMostJoined;
    for (size_t block = first; block < first + count && m <= kFewTokens; ++block) {
        const size_t left = matrix.n - block * kBlockRows, columns = left < kBlockRows ? left : kBlockRows;
        for (size_t from = 0; from < m; from += kTile) {
            const size_t here = m - from < kTile ? m - from : kTile;
            whole<kTile>(here, parts.high_of(matrix, block, 0), parts.low_of(matrix, block, 0), matrix.k, tokens(x, matrix.k, from),
                         to.out + from * to.stride + block * kBlockRows, to.stride, columns);
        }
    }
    uint8_t* joined = scratch + kLinearScratch - kJoinedBytes;
    for (size_t done = 0; done < count && m > kFewTokens; done += most) {
        const size_t block = first + done, here = count - done < most ? count - done : most, left = matrix.n - block * kBlockRows;
        for (size_t i = 0; i < here; ++i) join_block(matrix, parts, block + i, joined + i * bytes);
        const Matrix part = {kQ8_0, left < here * kBlockRows ? left : here * kBlockRows, matrix.k, 0, joined};
        kGroups32.multiply(part, x, m, {to.out + block * kBlockRows, to.stride}, 0, here, scratch);
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

// h + 16 as kernels take it: of few tokens, whose sums are offsets; of many.
struct FewOffsets : ScaledGroup<HighCodes, 1, 0> {};
struct High : ScaledGroup<HighCodes, 16, 0> {};

// Takes outputs of blocks as they come.
struct Bounds {
    const Screening& of;
    const float* bounds;                 // of the matrix's rows
    size_t first;                        // block
    Vec test;                            // NaN where a bound is not finite

    void take(size_t block, size_t token, Vec output) {
        const Vec bound = fma(load(bounds + block * kLanes), all(of.sizes[token]), output);
        test = fma(bound, zero(), test);
        const float most = largest_of(bound);
        of.bounds[(block - first) * of.tokens + token] = most;
        if (most > of.best[token]) of.best[token] = most, of.where[token] = static_cast<int32_t>(block);
    }
};

void screen_directly(const Matrix& matrix, const Tokens& x, size_t m, size_t first, size_t count, Bounds* bounds) {
    const size_t bytes = block_bytes<High>(matrix.k);
    float outputs[kTile * kLanes];
    for (size_t block = first; block < first + count; ++block)
        for (size_t from = 0; from < m; from += kTile) {
            const size_t here = m - from < kTile ? m - from : kTile;
            const Tokens part = {x.codes + from * x.stride, x.scales + from * x.groups, x.sums + from * x.groups * 2, x.stride, x.groups};
            direct<FewOffsets, kTile>(here, matrix.data + block * bytes, matrix.k, part, outputs, kLanes, kLanes);
            for (size_t i = 0; i < here; ++i) bounds->take(block, from + i, load(outputs + i * kLanes));
        }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// As multiply_panel, with offsets in place of 16 times the sums, and bounds in place of outputs.
void screen_panel(const Matrix& matrix, const Tokens& x, size_t from, size_t m, size_t first, size_t count, uint8_t* scratch, Bounds* bounds) {
    using E = Expanded<High>;
    uint8_t *expanded = scratch, *prepared = scratch + E::kGroup;
    const size_t tiles = (m + kTileTokens - 1) / kTileTokens;
    float* acc = reinterpret_cast<float*>(prepared + x.groups * tiles * E::kTile);
    prepare<High>(x, m, prepared);
    for (uint8_t* tile = prepared; tile < reinterpret_cast<uint8_t*>(acc); tile += E::kTile) {
        __m128i* totals = reinterpret_cast<__m128i*>(tile + E::kTotals);
        const __m128i sixteen = _mm_loadu_si128(totals);  // -16 s: less 7 / 256 of it is -15.5625 s
        _mm_storeu_si128(totals, _mm_sub_epi16(sixteen, _mm_mulhrs_epi16(sixteen, _mm_set1_epi16(896))));
    }
    for (size_t block = first; block < first + count; ++block) {
        const uint8_t *record = matrix.data + block * block_bytes<High>(matrix.k), *tile = prepared;
        memset(acc, 0, tiles * kTileTokens * kLanes * 4);
        for (size_t g = 0; g < x.groups; ++g, record += kHighBytes) {
            foresee(record + kForeseen, kHighBytes);
            expand_group<High>(record, record, expanded);
            for (size_t i = 0; i < tiles; ++i, tile += E::kTile) add_group<High, kTileTokens>(expanded, tile, acc + i * kTileTokens * kLanes);
        }
        for (size_t i = 0; i < m; ++i) bounds->take(block, from + i, load(acc + i * kLanes));
    }
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
    const size_t m = of.tokens;
    Bounds bounds = {of, reinterpret_cast<const float*>(matrix.data + parts.bounds), first, zero()};
    for (size_t i = 0; i < m; ++i) of.best[i] = -INFINITY, of.where[i] = static_cast<int32_t>(first);
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (const size_t panel = panel_tokens<High>(matrix.k); m > kDirectTokens<High>) {
        for (size_t from = 0; from < m; from += panel)
            screen_panel(matrix, tokens(x, matrix.k, from), from, m - from < panel ? m - from : panel, first, count, scratch, &bounds);
        return sum_of(bounds.test) == 0.0f;
    }
#endif
    (void)scratch;
    const Tokens offsets = {x.codes, x.scales, of.offsets, x.stride, parts.groups};
    screen_directly(matrix, offsets, m, first, count, &bounds);
    return sum_of(bounds.test) == 0.0f;
}

const FamilyKernels kScreened = {packed_bytes, pack, unpack, multiply, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
