// Products with fp32 weights in two halves: w = high + low and x = high + low, each a bf16, so that 16 bits of 24 count. Left out are low * low and
// what two bf16 do not hold: 2^-16 of a product at most.
//
// Output of a token and a row: acc = 0; for 32 inputs at a time, ascending, and there for x.low * w.high, x.high * w.high, x.high * w.low in turn:
// even = odd = 0; for pairs of inputs ascending even = fma(w, x, even) of the first of a pair and odd = fma(w, x, odd) of the second;
// acc = acc + (even + odd). Whatever is below the normal numbers is zero. So does AMX's TDPBF16PS, and so do vectors, slowly, where it is not
// there: the same at every M, tile and level. What is not finite makes NaN of the outputs that it meets.
#include <algorithm>

#include <float.h>

#include "linear/family.h"
#include "runtime/platform.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kMostTokens = 256;      // whose inputs are copied at a time, so that they stay in the second-level cache
constexpr size_t kFewTurns = 4;           // over a pair of blocks: weights are not there soon enough by themselves
constexpr size_t kMostInputs = kLinearScratch / (2 * kTileRows * sizeof(float));
constexpr size_t kHalf = kTileRecord / 2;  // bytes of 32 inputs' high halves, behind which are the low ones
constexpr size_t kPairs = kTileInputs / 2;

// The nearest bf16, ties to even, as the upper half of 32 bits. NaN of what is not finite, zero of what is below the normal numbers.
inline uint32_t rounded(float x) {
    constexpr uint32_t kExponent = 0x7f800000;
    const uint32_t bits = word(&x), sum = bits + 0x7fff + (bits >> 16 & 1);
    return (bits & kExponent) == kExponent ? 0x7fc00000 : (bits & kExponent) == 0 ? 0 : sum & 0xffff0000;
}
inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// What `kStoreHalves` does.
void store_each(const float* x, size_t groups, uint8_t* to) {
    for (size_t group = 0; group < groups; ++group, x += kTileInputs, to += kTileRecord)
        for (size_t i = 0; i < kTileInputs; ++i) {
            const uint32_t high = rounded(x[i]);
            const uint16_t first = static_cast<uint16_t>(high >> 16), second = static_cast<uint16_t>(rounded(x[i] - float_of(high)) >> 16);
            memcpy(to + i * sizeof first, &first, sizeof first);
            memcpy(to + kHalf + i * sizeof second, &second, sizeof second);
        }
}

// Inputs of m tokens as tiles [m / 16, inputs / 32] of records: 16 rows of 32 high halves, then of low ones. Of rows behind the last token
// outputs are made, and dropped.
void split_inputs(const float* x, size_t x_stride, size_t m, size_t groups, uint8_t* tiles) {
    const size_t tile_bytes = groups * kTileRecord;
    const auto store = splits() ? kStoreHalves : store_each;
    for (size_t t = 0; t < m; ++t) store(x + t * x_stride, groups, tiles + t / kTileRows * tile_bytes + t % kTileRows * kTileInputs * sizeof(uint16_t));
}

inline Vec normal(Vec x) { return where_below(magnitude(x), all(FLT_MIN), zero(), x); }

// Half records of one token and of a block onto its outputs.
Vec add_product(Vec acc, const uint8_t* x, const uint8_t* w) {
    Vec sums[2] = {zero(), zero()};
    for (size_t pair = 0; pair < kPairs; ++pair)
        for (size_t side = 0; side < 2; ++side) {
            uint16_t weights[kLanes], input;
            for (size_t r = 0; r < kLanes; ++r) memcpy(&weights[r], w + (pair * kLanes + r) * 4 + side * 2, 2);
            memcpy(&input, x + pair * 4 + side * 2, 2);
            sums[side] = normal(fma(load_bf16(weights), all(float_of(static_cast<uint32_t>(input) << 16)), sums[side]));
        }
    return normal(acc + normal(sums[0] + sums[1]));
}

// What `kTileSums` do.
void vector_sums(const TilePair& of, size_t token_tiles, float* out, size_t stride) {
    for (size_t t = 0; t < token_tiles * kTileRows; ++t)
        for (size_t block = 0; block < 2; ++block) {
            const uint8_t *x = of.x + t / kTileRows * of.apart + t % kTileRows * kTileInputs * 2, *w = of.w[block];
            Vec acc = zero();
            for (size_t group = 0; group < of.groups; ++group, x += kTileRecord, w += kTileRecord) {
                acc = add_product(acc, x + kHalf, w);
                acc = add_product(acc, x, w);
                acc = add_product(acc, x, w + kHalf);
            }
            store(out + t * stride + block * kBlockRows, acc);
        }
}

void sums_of(const TilePair& of, size_t token_tiles, float* out, size_t stride) {
    if (splits()) return kTileSums[token_tiles - 1](of, out, stride);
    vector_sums(of, token_tiles, out, stride);
}

// Outputs of up to 32 tokens and two blocks, the second of which may be none.
void multiply_pair(const Matrix& matrix, const TilePair& of, size_t m, const Product& to, size_t block, size_t blocks) {
    constexpr size_t kWide = 2 * kBlockRows;
    const size_t column = block * kBlockRows, columns = std::min(matrix.n - column, blocks * kBlockRows), tiles = (m + kTileRows - 1) / kTileRows;
    float* out = to.out + column;
    if (columns == kWide && m == tiles * kTileRows) return sums_of(of, tiles, out, to.stride);
    float sums[2 * kTileRows * kWide];
    sums_of(of, tiles, sums, kWide);
    for (size_t t = 0; t < m; ++t) memcpy(out + t * to.stride, sums + t * kWide, columns * sizeof(float));
}

size_t packed_bytes(int, size_t n, size_t k, size_t) {
    return k > 0 && k % kTileInputs == 0 && k <= kMostInputs ? (n + kBlockRows - 1) / kBlockRows * kBlockRows * k * sizeof(float) : 0;
}

// Where the high half of a weight of a block is.
size_t place(size_t row, size_t input) {
    return input / kTileInputs * kTileRecord + input % kTileInputs / 2 * kQuadBytes + row * 4 + input % 2 * 2;
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * sizeof(float);
    for (size_t block = first; block < first + count; ++block) {
        if (columns_of(matrix, block) < kBlockRows) memset(packed + block * bytes, 0, bytes);
        for (size_t r = 0; r < columns_of(matrix, block); ++r)
            for (size_t i = 0; i < matrix.k; ++i) {
                const float weight = float_of(word(rows + (block * kBlockRows + r) * row_bytes + i * sizeof(float)));
                const uint32_t high = rounded(weight), low = rounded(weight - float_of(high));
                uint8_t* to = packed + block * bytes + place(r, i);
                memcpy(to, reinterpret_cast<const uint8_t*>(&high) + 2, 2);
                memcpy(to + kHalf, reinterpret_cast<const uint8_t*>(&low) + 2, 2);
            }
    }
}

void row(const Matrix& matrix, size_t row, float* out) {
    const uint8_t* block = matrix.data + row / kBlockRows * kBlockRows * matrix.k * sizeof(float);
    for (size_t i = 0; i < matrix.k; ++i) {
        uint16_t high, low;
        memcpy(&high, block + place(row % kBlockRows, i), 2);
        memcpy(&low, block + place(row % kBlockRows, i) + kHalf, 2);
        out[i] = float_of(static_cast<uint32_t>(high) << 16) + float_of(static_cast<uint32_t>(low) << 16);
    }
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    for (size_t r = first * kBlockRows; r < std::min(matrix.n, (first + count) * kBlockRows); ++r)
        row(matrix, r, reinterpret_cast<float*>(rows + r * row_bytes));
}

}  // namespace

bool splits() { return kTileProducts && has_tiles(); }

void multiply_split(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                    uint8_t* scratch) {
    constexpr size_t kTogether = 2 * kTileRows;
    const size_t groups = matrix.k / kTileInputs, tile_bytes = groups * kTileRecord;
    const size_t most = std::min(kMostTokens, kLinearScratch / (2 * tile_bytes) * kTogether);
    if (splits()) kTilesBegin();
    for (size_t from = 0; from < m; from += most) {
        const size_t tokens = std::min(most, m - from), turns = (tokens + kTogether - 1) / kTogether;
        const size_t fetched = turns <= kFewTurns ? 2 * kTileRecord / turns : 0;
        split_inputs(x + from * x_stride, x_stride, tokens, groups, scratch);
        for (size_t block = first; block < first + count; block += 2) {
            const size_t blocks = std::min<size_t>(2, first + count - block);
            const uint8_t *w = matrix.data + block * tile_bytes, *next = block + 2 < first + count ? w + 2 * tile_bytes : w;
            for (size_t turn = 0; turn < turns; ++turn) {
                const size_t t = turn * kTogether;
                const TilePair of = {scratch + 2 * turn * tile_bytes, {w, w + (blocks - 1) * tile_bytes}, tile_bytes, groups,
                                     next + turn * (2 * tile_bytes / turns), fetched};
                multiply_pair(matrix, of, std::min(kTogether, tokens - t), {to.out + (from + t) * to.stride, to.stride}, block, blocks);
            }
        }
    }
    if (splits()) kTilesEnd();
}

const FamilyKernels kSplit = {packed_bytes, pack, unpack, nullptr, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
