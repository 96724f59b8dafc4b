// A Q8_0 matrix and what finds the largest outputs of a token from less than all of it (screen.h).
//
// First the matrix as any of Q8_0. Then, with q = 8 h + l, 0 <= l < 8, all h: records of 352 bytes per group with the scales of q. Then, for each
// row, how far rounding may be off. The h stand beside the q: cut in two the matrix would take as little memory as before, but 8 bits that are put
// together again make products of 2 to 8 tokens slower.
//
// Why bounds hold. Of a row, w = d q and e = d (l - 3.5); of a token, x as its codes and scales s say; G = k / 32 groups, u = 2^-24. The screen
// sees d (8 h + 3.5) x: its codes are h + 16, and 15.5625 times the sum of x's codes is taken off. It leaves out e x, which is at most
// |c e| |x / c| whatever the scales c > 0 of inputs (Cauchy-Schwarz; channels.h chooses them). With C the largest of these, |x| is at most
// C |x / c|.
// What is taken off is rounded to integers, by at most 1/2 twice per group: 8 |d| |s| in all, at most 8 / 127 |d| |x| once |x| is taken no
// smaller than 127 |s|. A sum over G groups is off by at most (G + 2) u |terms|_1, its terms being rounded once and the sum G times (Higham
// 2002, section 3.1), and that is (G + 2) u |w| |x| in the exact kernel and (G + 2) u (|w| + |e| + |d|) |x| here, |e| <= 20 |d|. Adding the
// bound and comparing take less than four roundings of as much. A row's bound has twice all of that. |c e| is the root of a product of the
// squares (2 l - 7)^2 with those of scales, which are integers times a step: off by (G + 4) u of it. Underflow is left to the threshold
// (screen.cpp).
#include <math.h>

#include "linear/direct.h"
#include "linear/family.h"
#include "linear/groups32.h"
#include RIDGELINE_GROUP_TILES

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kFewTokens = 3;         // straight from records: more are worth what is expanded
constexpr size_t kRoundingBytes = kLanes * sizeof(float);
constexpr double kLargest = 0x1p90;      // of |x|: |w| < 2^31 whatever fp16 scales, so that no sum overflows
constexpr double kLeast = 0x1p-126;      // of a size: one below the normal numbers would be rounded by more than bounds allow
constexpr size_t kSampled = 64;          // blocks of a matrix whose rows say what the screen leaves out of an input

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
    size_t groups, blocks, whole, high, highs, roundings, bytes;
    Parts(size_t n, size_t k) : groups(k / kCodeGroup), blocks((n + kBlockRows - 1) / kBlockRows) {
        whole = block_bytes<Q8_0>(k), high = groups * kHighBytes;
        highs = (blocks * whole + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
        roundings = (highs + blocks * high + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
        bytes = roundings + blocks * kRoundingBytes;
    }
    const uint8_t* high_of(const Matrix& matrix, size_t block) const { return matrix.data + highs + block * high; }
    const float* roundings_of(const Matrix& matrix, size_t block) const {
        return reinterpret_cast<const float*>(matrix.data + roundings) + block * kLanes;
    }
};

// The first part.
Matrix whole_of(const Matrix& matrix) { return {kQ8_0, matrix.n, matrix.k, 0, matrix.data}; }

size_t packed_bytes(int, size_t n, size_t k, size_t) { return k == 0 || k % kCodeGroup != 0 ? 0 : Parts(n, k).bytes; }

// What rounding may be off by, of 16 rows: from squares of w and d.
struct Squares {
    double w[kLanes] = {}, d[kLanes] = {};

    void add(const uint8_t* record) {
        uint32_t wholes[kQuadBytes] = {};
        for (size_t t = 0; t < kGroupQuads; ++t)
            for (size_t i = 0; i < kQuadBytes; ++i) {
                const int32_t whole = record[t * kQuadBytes + i] - Q8_0::kZero;
                wholes[i] += static_cast<uint32_t>(whole * whole);
            }
        float scale[kLanes];
        store(scale, load_half(record + Q8_0::Coding::kBytes));
        for (size_t r = 0; r < kLanes; ++r) {
            double whole = 0.0;
            for (size_t i = 4 * r; i < 4 * r + 4; ++i) whole += wholes[i];
            const double square = static_cast<double>(scale[r]) * scale[r];
            w[r] += square * whole, d[r] += square;  // all of it exact but for the product
        }
    }

    void write(size_t k, float* roundings) const {
        const double rounding = (static_cast<double>(k / kCodeGroup) + 8.0) * 0x1p-23;
        for (size_t r = 0; r < kLanes; ++r) {
            const double scales = sqrt(d[r]);
            roundings[r] = static_cast<float>((8.0 / 127.0 * scales + rounding * (2.0 * sqrt(w[r]) + 21.0 * scales)) * (1.0 + 0x1p-20));
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
        float roundings[kLanes];
        squares.write(matrix.k, roundings);
        memcpy(packed + parts.roundings + block * kRoundingBytes, roundings, kRoundingBytes);
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

// (2 l - 7)^2 in place of a code, d^2 in place of its scale: products with squares of scales are squares of 2 |c e|.
struct LowSquareCodes {
    static constexpr int kBits = 6;
    static constexpr size_t kBytes = Q8_0::Coding::kBytes;
    static Quad quad(const uint8_t* record, size_t t) {
        alignas(16) static constexpr uint8_t kSquares[16] = {49, 25, 9, 1, 1, 9, 25, 49};
        return look_up(bits(load_quad(record + t * kQuadBytes), 0, 0, 7), kSquares);
    }
};
struct LowSquares : ScaledGroup<LowSquareCodes, 0, 0> {
    static void floats(const uint8_t*, const uint8_t* scales, Vec* scale, Vec*) { scale[0] = halves(scales) * halves(scales); }
};

// What is taken off a sum of products with h + 16: 15.5625 times the sum of codes.
inline int32_t offset(int32_t sum) { return (249 * sum + 8) >> 4; }

// Bounds of one block for some tokens from their outputs [tokens, 16]. Returns `test`, NaN once a bound was not finite.
inline Vec bound_block(const Screening& of, size_t first, size_t block, size_t from, size_t m, const float* outputs, Vec test) {
    const Vec bound = load(of.rows + block * kLanes);
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

Vec screen_directly(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t m, size_t first, size_t count, const Screening& of) {
    float outputs[kRecordTokens * kLanes];
    Vec test = zero();
    const size_t apart = m == 1 ? count / kReadStreams : 0, rest = first + kReadStreams * apart;
    for (size_t block = first; block < first + apart; ++block) {
        Vec acc[kReadStreams];
        for (Vec& sum : acc) sum = zero();
        add_records<High, 1, kReadStreams>(parts.high_of(matrix, block), apart * parts.high, matrix.k, x, acc);
        for (size_t i = 0; i < kReadStreams; ++i) {
            store(outputs, acc[i]);
            test = bound_block(of, first, block + i * apart, 0, 1, outputs, test);
        }
    }
    for (size_t block = rest; block < first + count; ++block)
        for (size_t from = 0; from < m; from += kRecordTokens) {
            const size_t here = m - from < kRecordTokens ? m - from : kRecordTokens;
            Vec sums[kRecordTokens];
            direct<High, kRecordTokens, 1>(here, parts.high_of(matrix, block), 0, matrix.k, tokens_from(x, from), sums);
            for (size_t i = 0; i < here; ++i) store(outputs + i * kLanes, sums[i]);
            test = bound_block(of, first, block, from, here, outputs, test);
        }
    return test;
}

// Sums [tokens, 16] of many tokens with blocks, at levels with kTiledSums.
template <class F, class Put>
bool sum_tiled(const uint8_t* data, size_t bytes, size_t count, const Tokens& x, size_t m, uint8_t* scratch, const Put& put);

// The same of many tokens; false: there are not so many.
template <class F>
bool screen_tiled(const Matrix& matrix, const Parts& parts, const Tokens& x, size_t m, size_t first, size_t count, uint8_t* scratch,
                  const Screening& of, Vec* test) {
    if constexpr (!kTiledSums) return false;
    else if (m <= kFewTokens) return false;
    else
        return sum_tiled<F>(parts.high_of(matrix, first), parts.high, count, x, m, scratch, [&](size_t block, size_t from, size_t here, const float* sums) {
            *test = bound_block(of, first, first + block, from, here, sums, *test);
        });
}

}  // namespace

void left_out(const Matrix& matrix, double* energies) {
    const Parts parts(matrix.n, matrix.k);
    const size_t step = parts.blocks < kSampled ? 1 : parts.blocks / kSampled;
    for (size_t i = 0; i < matrix.k; ++i) energies[i] = 0.0;
    for (size_t block = 0; block < parts.blocks; block += step)
        for (size_t g = 0; g < parts.groups; ++g) {
            const uint8_t* record = matrix.data + block * parts.whole + g * kRecordBytes<Q8_0>;
            float scale[kLanes];
            store(scale, load_half(record + Q8_0::Coding::kBytes));
            for (size_t t = 0; t < kGroupQuads; ++t)
                for (size_t i = 0; i < kQuadBytes; ++i) {
                    const double left = scale[i / 4] * ((record[t * kQuadBytes + i] & 7) - 3.5);
                    energies[g * kCodeGroup + t * 4 + i % 4] += left * left;
                }
        }
}

void fit_rows(const Matrix& matrix, const ChannelScales& channels, size_t first, size_t count, float* rows, uint8_t* scratch) {
    const Parts parts(matrix.n, matrix.k);
    memset(scratch, 0, 2 * parts.groups * sizeof(int32_t));      // sums of codes, which nothing is taken off by
    const Tokens squares = {channels.codes, channels.steps, reinterpret_cast<const int32_t*>(scratch), matrix.k, parts.groups};
    const double rounding = 1.0 + (static_cast<double>(parts.groups) + 8.0) * 0x1p-23;
    for (size_t block = first; block < first + count; ++block) {
        Vec sum;
        float squared[kLanes];           // of 2 |c e|
        direct<LowSquares, 1, 1>(1, matrix.data + block * parts.whole, 0, matrix.k, squares, &sum);
        store(squared, sum);
        for (size_t r = 0; r < kLanes; ++r) {
            const double left = 0.5 * sqrt(squared[r] * rounding), rounded = static_cast<double>(channels.largest) * parts.roundings_of(matrix, block)[r];
            rows[block * kLanes + r] = static_cast<float>(0.125 * (left + rounded) * (1.0 + 0x1p-20));
        }
    }
}

void measure_token(const Codes& x, size_t k, size_t token, const Screening& of) {
    const size_t groups = k / kCodeGroup;
    double squares = 0.0, scales = 0.0;
    for (size_t g = 0; g < groups; ++g) {
        const int8_t* codes = x.codes + token * x.stride + g * kCodeGroup;
        const double scale = x.scales[token * groups + g];
        double whole = 0.0;
        for (size_t i = 0; i < kCodeGroup; ++i) whole += codes[i] * codes[i] * static_cast<double>(of.channels.inverses[g * kCodeGroup + i]);
        squares += scale * scale * whole, scales += scale * scale;
        const int32_t* sums = x.sums + (token * groups + g) * 2;
        int32_t* offsets = of.offsets + (token * groups + g) * 2;
        offsets[0] = offset(sums[0] + sums[1]), offsets[1] = 0;
    }
    const double largest = of.channels.largest, within = 127.0 * 127.0 * scales / (largest * largest);
    double size = sqrt(squares > within ? squares : within) * (1.0 + 0x1p-20);
    if (size < kLeast) size = kLeast;
    of.sizes[token] = size * largest <= kLargest ? static_cast<float>(size) : NAN;
}

bool screen(const Matrix& matrix, const Codes& x, const Screening& of, size_t first, size_t count, uint8_t* scratch) {
    const Parts parts(matrix.n, matrix.k);
    const size_t m = of.tokens;
    for (size_t i = 0; i < m; ++i) of.best[i] = -INFINITY;
    const Tokens x_of = {x.codes, x.scales, of.offsets, x.stride, parts.groups};
    Vec test = zero();
    if (!screen_tiled<High>(matrix, parts, x_of, m, first, count, scratch, of, &test))
        test = screen_directly(matrix, parts, x_of, m, first, count, of);
    return sum_of(test) == 0.0f;
}

const FamilyKernels kScreened = {packed_bytes, pack, unpack, multiply, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
