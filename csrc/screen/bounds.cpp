// A Q8_0 matrix and what finds the largest outputs of a token from less than all of it (screen.h).
//
// First the matrix as any of Q8_0. Then, with q = 8 h + l, 0 <= l < 8, all h: records of 352 bytes per group with the scales of q. Then, for each
// row, an eighth of its bound. The h stand beside the q: cut in two the matrix would take as little memory as before, but 8 bits that are put
// together again make products of 2 to 8 tokens slower.
//
// Why bounds hold. Of a row, w = d q and e = d (l - 3.5); of a token, x as its codes and scales s say; G = k / 32 groups, u = 2^-24. The screen
// sees d (8 h + 3.5) x: its codes are h + 16, and 15.5625 times the sum of x's codes is taken off. It leaves out e x, at most |e| |x|.
// What is taken off is rounded to integers, by at most 1/2 twice per group: 8 |d| |s| in all, at most 8 / 127 |d| |x| once |x| is taken no
// smaller than 127 |s|. A sum over G groups is off by at most (G + 2) u |terms|_1, its terms being rounded once and the sum G times (Higham
// 2002, section 3.1), and that is (G + 2) u |w| |x| in the exact kernel and (G + 2) u (|w| + |e| + |d|) |x| here. Adding the bound and
// comparing take less than four roundings of as much. A row's bound has twice all of that. Underflow is left to the threshold (screen.cpp).
#include <math.h>

#include "linear/direct.h"
#include "linear/family.h"
#include "linear/groups32.h"
#include RIDGELINE_GROUP_TILES

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kFewTokens = 3;         // straight from records: more are worth what is expanded
constexpr size_t kBoundBytes = kLanes * sizeof(float);
constexpr double kLargest = 0x1p90;      // of |x|: |w| < 2^31 whatever fp16 scales, so that no sum overflows

// The upper 5 of 8 bits, a group of 16 rows and 32 inputs at a time.
//
// Eight quads of 5 bits take five pieces of 64 bytes: piece i < 5 has quad i in its upper 5 bits; what is left holds the lower 3 bits of quads 5, 6
// and 7 (pieces 0, 1, 2), the upper 2 of quads 5 and 6 (pieces 3, 4), and those of quad 7, one each (pieces 3, 4). So most quads take one
// operation or two to read.
inline Quad piece(const uint8_t* pieces, size_t i) { return load_quad(pieces + i * kQuadBytes); }
inline Quad bits(Quad w, unsigned from, unsigned to, unsigned mask) { return shifted(w, from, to, static_cast<char>(mask)); }

struct HighCodes {
    static constexpr int kBits = 5;
    static constexpr size_t kBytes = kBits * kQuadBytes;

    static Quad quad(const uint8_t* p, size_t t) {
        if (t < 5) return bits(piece(p, t), 3, 0, 0x1f);
        const Quad lower = bits(piece(p, t - 5), 0, 0, 7);
        if (t < 7) return or_(lower, bits(piece(p, t - 2), 0, 3, 0x18));
        return or_(lower, or_(bits(piece(p, 3), 2, 3, 8), bits(piece(p, 4), 2, 4, 0x10)));
    }

    // Bits 3 … 7 of whole codes [8].
    static void write(uint8_t* p, const Quad* whole) {
        for (size_t i = 0; i < 3; ++i) store_quad(p + i * kQuadBytes, or_(bits(whole[i], 0, 0, 0xf8), bits(whole[5 + i], 3, 0, 7)));
        for (size_t i = 3; i < 5; ++i) {
            const unsigned last = static_cast<unsigned>(i) + 3;
            const Quad upper = or_(bits(whole[2 + i], 6, 0, 3), bits(whole[7], last, 2, 4));
            store_quad(p + i * kQuadBytes, or_(bits(whole[i], 0, 0, 0xf8), upper));
        }
    }
};

constexpr size_t kHighBytes = HighCodes::kBytes + 32;    // of a group: codes, 16 scales

// What the screen reads of a record of Q8_0.
inline void write_high(const uint8_t* record, uint8_t* high) {
    Quad whole[kGroupQuads];
    for (size_t t = 0; t < kGroupQuads; ++t) whole[t] = load_quad(record + t * kQuadBytes);
    HighCodes::write(high, whole);
    memcpy(high + HighCodes::kBytes, record + Q8_0::Coding::kBytes, Q8_0::kScales);
}

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

// h + 16 as kernels take it: what is taken off are offsets in place of sums.
struct High : ScaledGroup<HighCodes, 1, 0> {};
template <>
constexpr bool kScreens<High> = true;

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

Vec screen_directly(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t m, size_t first, size_t count, const Screening& of,
                    const float* bounds) {
    float outputs[kRecordTokens * kLanes];
    Vec test = zero();
    const size_t apart = m == 1 ? count / kReadStreams : 0, rest = first + kReadStreams * apart;
    for (size_t block = first; block < first + apart; ++block) {
        Vec acc[kReadStreams];
        for (Vec& sum : acc) sum = zero();
        add_records<High, 1, kReadStreams>(parts.high_of(matrix, block), apart * parts.high, matrix.k, x, acc);
        for (size_t i = 0; i < kReadStreams; ++i) {
            store(outputs, acc[i]);
            test = bound_block(of, bounds, first, block + i * apart, 0, 1, outputs, test);
        }
    }
    for (size_t block = rest; block < first + count; ++block)
        for (size_t from = 0; from < m; from += kRecordTokens) {
            const size_t here = m - from < kRecordTokens ? m - from : kRecordTokens;
            Vec sums[kRecordTokens];
            direct<High, kRecordTokens, 1>(here, parts.high_of(matrix, block), 0, matrix.k, tokens_from(x, from), sums);
            for (size_t i = 0; i < here; ++i) store(outputs + i * kLanes, sums[i]);
            test = bound_block(of, bounds, first, block, from, here, outputs, test);
        }
    return test;
}

// Sums [tokens, 16] of many tokens with blocks, at levels with kTiledSums.
template <class F, class Put>
bool sum_tiled(const uint8_t* data, size_t bytes, size_t count, const Tokens& x, size_t m, uint8_t* scratch, const Put& put);

// The same of many tokens; false: there are not so many.
template <class F>
bool screen_tiled(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t m, size_t first, size_t count, uint8_t* scratch,
                  const Screening& of, const float* bounds, Vec* test) {
    if constexpr (!kTiledSums) return false;
    else if (m <= kFewTokens) return false;
    else
        return sum_tiled<F>(parts.high_of(matrix, first), parts.high, count, x, m, scratch, [&](size_t block, size_t from, size_t here, const float* sums) {
            *test = bound_block(of, bounds, first, first + block, from, here, sums, *test);
        });
}

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
    const Tokens x_of = {x.codes, x.scales, of.offsets, x.stride, parts.groups};
    Vec test = zero();
    if (!screen_tiled<High>(matrix, parts, x_of, m, first, count, scratch, of, bounds, &test))
        test = screen_directly(matrix, parts, x_of, m, first, count, of, bounds);
    return sum_of(test) == 0.0f;
}

const FamilyKernels kScreened = {packed_bytes, pack, unpack, multiply, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
