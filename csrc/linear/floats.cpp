// Products with float weights. Output of a token and a row: acc = 0; for k ascending acc = fma(weight, x, acc), lanes are rows: the same at
// every M, tile and level. (bf16 dot instructions would be faster where they exist; they round differently and flush what is tiny.)
//
// A tile's tokens read weights in one stream from memory. A few tiles go over each block by pieces, which stay in the first-level cache with
// copies of the tokens' inputs. Many tokens read a pair of blocks from a panel in fp32, widened as the first tokens meet it. Between pieces
// sums wait in memory, which changes no bit of them. Small floats under scales are widened for one tile as they are read, for more
// of them a piece at a time.
#include <string.h>

#include "linear/family.h"
#include "linear/scaled.h"
#include RIDGELINE_FLOAT_STEPS

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// A tile adds inputs, ascending, onto the sums [tokens, 2, 16] of a few tokens with two blocks of 16 rows: `block_tile` reads one block as it is
// packed, and may leave it in fp32 in a panel [inputs, 2, 16]; `pair_tile` reads both blocks of one.
constexpr size_t kBlockTokens = kFloatTokens, kPairTokens = kFloatPairTokens;    // of a tile: at most, exactly
constexpr size_t kPairFetched = 16;
constexpr size_t kPairLanes = 2 * kLanes;                // floats from token to token of sums, from input to input of a panel

// What tiles read: of small floats under scales, which `widen_block` widens, fp32.
constexpr int read_as(int format) { return is_scaled(format) ? kF32 : format; }
constexpr size_t element_bytes(int format) { return read_as(format) == kF32 ? 4 : 2; }

template <int Format>
inline Vec weights(const uint8_t* p) {
    if (Format == kF32) return load(reinterpret_cast<const float*>(p));
    if (Format == kF16) return load_half(reinterpret_cast<const uint16_t*>(p));
    return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

// Sixteen weights in the order that is quickest to widen, which is that of panels and sums; and the order of rows again.
template <int Format>
inline Vec load_weights(const uint8_t* p) {
    if constexpr (Format == kBF16) return load_bf16_shuffled(p);
    else return weights<Format>(p);
}
template <int Format>
inline Vec in_rows(Vec x) {
    if constexpr (Format == kBF16) return unshuffled_bf16(x);
    else return x;
}

// What a tile reads: x, `stride` floats from token to token, and `inputs` of it and of the weights.
struct Span {
    const float* x;
    size_t stride, inputs;
};

// How a tile reads a block: in one stream from memory; or from the second-level cache, while it fetches half as many bytes of `ahead` to there,
// and maybe leaves it in a panel.
enum Read { kStream, kFetch, kExpand };

template <int Format, bool kKeep, size_t M>
size_t block_turns(const uint8_t* data, const uint8_t* ahead, float* panel, const float* x, size_t stride, size_t inputs, float* sums);

template <int Format, Read kRead, size_t M>
inline void add_block(const uint8_t* data, const uint8_t* ahead, float* panel, const Span& span, float* sums) {
    constexpr size_t kBytes = kLanes * element_bytes(Format);
    size_t done = 0;
    if constexpr (kFloatSteps && kRead != kStream) {
        done = block_turns<Format, kRead == kExpand, M>(data, ahead, panel, span.x, span.stride, span.inputs, sums);
        if (done > 0 && done == span.inputs) return;
    }
    Vec sum[M];
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) sum[t] = load(sums + t * kPairLanes);
    for (size_t i = done; i < span.inputs; ++i) {
        if (kRead == kStream && Format != kF32) __builtin_prefetch(ahead + i * kBytes);  // wider ones the processor fetches by itself
        const Vec w = load_weights<Format>(data + i * kBytes);
        if (kRead == kExpand) store(panel + i * kPairLanes, w);
        RIDGELINE_UNROLL
        for (size_t t = 0; t < M; ++t) sum[t] = fma(w, all(span.x[t * span.stride + i]), sum[t]);
    }
    RIDGELINE_UNROLL
    for (size_t t = 0; t < M; ++t) store(sums + t * kPairLanes, sum[t]);
}

// `m` tokens, Least to M, with one block.
template <int Format, Read kRead, size_t Least, size_t M>
void block_tile(size_t m, const uint8_t* data, const uint8_t* ahead, float* panel, const Span& span, float* sums) {
    if constexpr (M > Least)
        if (m < M) return block_tile<Format, kRead, Least, M - 1>(m, data, ahead, panel, span, sums);
    add_block<Format, kRead, M>(data, ahead, panel, span, sums);
}

// kPairTokens tokens with both blocks of a panel. Unless `ahead` is null, kPairFetched bytes per input are fetched from
// there, and from `apart` bytes behind.
inline void pair_tile(const float* panel, const uint8_t* ahead, size_t apart, const Span& span, float* sums) {
    const size_t done = panel_turns(panel, ahead, apart, span.x, span.stride, span.inputs, sums, kPairLanes);
    if (done == span.inputs) return;
    Vec sum[kPairTokens][2];
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kPairTokens; ++t) sum[t][0] = load(sums + t * kPairLanes), sum[t][1] = load(sums + t * kPairLanes + kLanes);
    for (size_t i = done; i < span.inputs; ++i) {
        const Vec w = load(panel + i * kPairLanes), v = load(panel + i * kPairLanes + kLanes);
        RIDGELINE_UNROLL
        for (size_t t = 0; t < kPairTokens; ++t) {
            const Vec x = all(span.x[t * span.stride + i]);
            sum[t][0] = fma(w, x, sum[t][0]), sum[t][1] = fma(v, x, sum[t][1]);
        }
    }
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kPairTokens; ++t) store(sums + t * kPairLanes, sum[t][0]), store(sums + t * kPairLanes + kLanes, sum[t][1]);
}

constexpr size_t kFewTokens = 24;
constexpr size_t kFewInputs = 512, kFewWide = 256, kManyInputs = 192;    // of a piece, of one that is widened, of a panel
constexpr size_t kManyTokens = 126;      // whose inputs stay in the second-level cache
constexpr size_t kManyBlocks = 64;       // for which inputs are copied once
constexpr size_t kFloatAhead = 2048;     // bytes that a stream is fetched ahead
constexpr size_t kFloatStreams = 4, kFloatNear = 512;   // streams of one token, and how far each is fetched ahead
constexpr size_t kPadding = kLanes;      // floats between tokens of copied inputs: they would all be in the same lines of a cache
// Of many tokens the first tile takes this many at least, so that kPairTokens at a time are left.
constexpr size_t kLeastTokens = kBlockTokens - kPairTokens + 1;

// Floats of scratch: inputs of tokens that are copied, and sums [pairs of blocks, tokens, 2, 16].
constexpr size_t scratch_floats(size_t tokens, size_t inputs) { return tokens * (inputs + kPadding + kManyBlocks * kLanes); }
static_assert(kBlockTokens <= kFewTokens && scratch_floats(kFewTokens, kFewInputs) * sizeof(float) <= kLinearScratch);
static_assert((kFewWide * kLanes + scratch_floats(kFewTokens, kFewWide)) * sizeof(float) <= kLinearScratch);
static_assert((kManyInputs * (kPairLanes + kLanes) + scratch_floats(kManyTokens, kManyInputs)) * sizeof(float) <= kLinearScratch);

// Some blocks of a product.
template <int Format>
struct Blocks {
    static constexpr size_t kInput = kLanes * element_bytes(Format);
    const Matrix& matrix;
    const Product& to;
    size_t first, count;

    const uint8_t* at(size_t block, size_t input) const { return matrix.data + ((first + block) * matrix.k + input) * kInput; }

    // Some inputs of a block as tiles read them, and what is fetched meanwhile; `floats` are where they can be widened to.
    const uint8_t* piece(size_t block, size_t from, size_t inputs, float* floats) const {
        if constexpr (!is_scaled(Format)) return at(block, from);
        else return widen_block<Format>(matrix, first + block, from, inputs, floats), reinterpret_cast<const uint8_t*>(floats);
    }
    const uint8_t* next(size_t block, size_t from, size_t inputs, const float* floats) const {
        if constexpr (is_scaled(Format)) return reinterpret_cast<const uint8_t*>(floats);     // widening has fetched it
        else return block < count ? at(block, from) : at(0, from + inputs);
    }

    // Sums [m, 2, 16] of one block to where they belong.
    void put(size_t block, const float* sums, size_t m) const {
        const size_t columns = columns_of(matrix, first + block);
        float* out = to.out + (first + block) * kBlockRows;
        for (size_t t = 0; t < m; ++t, out += to.stride, sums += kPairLanes) {
            const Vec sum = in_rows<Format>(load(sums));
            columns == kBlockRows ? store(out, sum) : store_first(out, sum, columns);
        }
    }
    // The same of all blocks, from [pairs of blocks, m, 2, 16].
    void put_all(const float* sums, size_t m) const {
        for (size_t block = 0; block < count; ++block) put(block, sums + block / 2 * m * kPairLanes + block % 2 * kLanes, m);
    }
};

// Inputs `from` … of m tokens next to each other.
Span copied(const float* x, size_t x_stride, size_t m, size_t from, size_t inputs, size_t stride, float* to) {
    for (size_t t = 0; t < m; ++t) {
        const float* row = x + t * x_stride + from;
        size_t i = 0;
        for (; i + kLanes <= inputs; i += kLanes) store(to + t * stride + i, load(row + i));
        memcpy(to + t * stride + i, row + i, (inputs - i) * sizeof(float));
    }
    return {to, stride, inputs};
}

// One token with as many blocks as streams can share, whose number it returns: a core reads several streams faster than one, and waits less for
// additions that follow each other.
template <int Format>
size_t multiply_token(const Blocks<Format>& blocks, const float* x) {
    constexpr size_t kInput = Blocks<Format>::kInput;
    const size_t apart = blocks.count / kFloatStreams, k = blocks.matrix.k, stride = apart * k * kInput;
    for (size_t block = 0; block < apart; ++block) {
        const uint8_t* data = blocks.at(block, 0);
        Vec sum[kFloatStreams];
        for (Vec& each : sum) each = zero();
        for (size_t i = 0; i < k; ++i, data += kInput)
            RIDGELINE_UNROLL
            for (size_t stream = 0; stream < kFloatStreams; ++stream) {
                __builtin_prefetch(data + stream * stride + kFloatNear);
                sum[stream] = fma(load_weights<Format>(data + stream * stride), all(x[i]), sum[stream]);
            }
        float sums[kPairLanes];
        for (size_t stream = 0; stream < kFloatStreams; ++stream) {
            store(sums, sum[stream]);
            blocks.put(block + stream * apart, sums, 1);
        }
    }
    return kFloatStreams * apart;
}

template <int Format>
void multiply_tile(const Blocks<Format>& blocks, const float* x, size_t x_stride, size_t m) {
    for (size_t block = m == 1 ? multiply_token(blocks, x) : 0; block < blocks.count; ++block) {
        const uint8_t* data = blocks.at(block, 0);
        float sums[kBlockTokens * kPairLanes] = {};
        block_tile<Format, kStream, 1, kBlockTokens>(m, data, data + kFloatAhead, nullptr, {x, x_stride, blocks.matrix.k}, sums);
        blocks.put(block, sums, m);
    }
}

// Tiles are of equal size, or differ by one. Small floats are widened a piece at a time, which stays in the first-level cache for all tiles.
template <int Format>
void multiply_few(const Blocks<Format>& blocks, const float* x, size_t x_stride, size_t m, float* scratch) {
    constexpr size_t kInputs = is_scaled(Format) ? kFewWide : kFewInputs, kStride = kInputs + kPadding;
    const size_t k = blocks.matrix.k, tiles = (m + kBlockTokens - 1) / kBlockTokens;
    float *wide = scratch + m * kStride, *sums = wide + (is_scaled(Format) ? kInputs * kLanes : 0);
    memset(sums, 0, (blocks.count + 1) / 2 * m * kPairLanes * sizeof(float));
    for (size_t from = 0; from < k; from += kInputs) {
        const size_t inputs = k - from < kInputs ? k - from : kInputs;
        const Span all_tokens = copied(x, x_stride, m, from, inputs, kStride, scratch);
        for (size_t block = 0; block < blocks.count; ++block) {
            const uint8_t *data = blocks.piece(block, from, inputs, wide), *next = blocks.next(block + 1, from, inputs, wide);
            float* onto = sums + block / 2 * m * kPairLanes + block % 2 * kLanes;
            for (size_t tile = 0; tile < tiles; ++tile) {
                const size_t token = m * tile / tiles, tokens = m * (tile + 1) / tiles - token;
                const uint8_t* ahead = tile < 2 ? next + tile * inputs * Blocks<Format>::kInput / 2 : data;   // two tiles fetch all of it
                block_tile<read_as(Format), kFetch, 1, kBlockTokens>(tokens, data, ahead, nullptr, {all_tokens.x + token * kStride, kStride, inputs},
                                                            onto + token * kPairLanes);
            }
        }
    }
    blocks.put_all(sums, m);
}

// kManyTokens at most.
template <int Format>
void multiply_many(const Blocks<Format>& blocks, const float* x, size_t x_stride, size_t m, float* scratch) {
    constexpr size_t kStride = kManyInputs + kPadding, kInput = Blocks<Format>::kInput;
    const size_t k = blocks.matrix.k, pairs = (blocks.count + 1) / 2, few = m - (m - kLeastTokens) / kPairTokens * kPairTokens;
    float *panel = scratch, *mine = panel + kManyInputs * kPairLanes, *wide = mine + m * kStride;
    float* sums = wide + (is_scaled(Format) ? kManyInputs * kLanes : 0);
    memset(sums, 0, pairs * m * kPairLanes * sizeof(float));
    for (size_t from = 0; from < k; from += kManyInputs) {
        const size_t inputs = k - from < kManyInputs ? k - from : kManyInputs;
        copied(x, x_stride, m, from, inputs, kStride, mine);
        for (size_t pair = 0; pair < pairs; ++pair) {
            // What comes next is fetched by several tiles: the first one alone would wait for memory. It takes the first half of either block.
            const uint8_t* next = blocks.next(2 * pair + 2, from, inputs, wide);
            const size_t apart = blocks.count > 1 && !is_scaled(Format) ? k * kInput : 0;
            float* onto = sums + pair * m * kPairLanes;
            for (size_t side = 0; side < 2 && 2 * pair + side < blocks.count; ++side)
                block_tile<read_as(Format), kExpand, kLeastTokens, kBlockTokens>(few, blocks.piece(2 * pair + side, from, inputs, wide),
                                                                        next + side * apart, panel + side * kLanes, {mine, kStride, inputs}, onto + side * kLanes);
            const uint8_t *ahead = next + inputs * kInput / 2, *end = next + inputs * kInput;
            for (size_t t = few; t < m; t += kPairTokens, ahead += kManyInputs * kPairFetched)
                pair_tile(panel, ahead < end ? ahead : nullptr, apart, {mine + t * kStride, kStride, inputs}, onto + t * kPairLanes);
        }
    }
    blocks.put_all(sums, m);
}

template <int Format>
void multiply(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count, uint8_t* scratch) {
    float* floats = reinterpret_cast<float*>(scratch);
    if (m == 0) return;
    if constexpr (is_scaled(Format)) {
        if (m <= kBlockTokens) return multiply_scaled<Format>(matrix, x, x_stride, m, to, first, count);
    } else if (m <= kBlockTokens) {
        return multiply_tile(Blocks<Format>{matrix, to, first, count}, x, x_stride, m);
    }
    const size_t parts = m <= kFewTokens ? 1 : (m + kManyTokens - 1) / kManyTokens;
    for (size_t block = 0; block < count; block += kManyBlocks)
        for (size_t part = 0; part < parts; ++part) {
            const size_t token = m * part / parts, tokens = m * (part + 1) / parts - token;
            const Product there = {to.out + token * to.stride, to.stride};
            const Blocks<Format> blocks = {matrix, there, first + block, count - block < kManyBlocks ? count - block : kManyBlocks};
            if (m > kFewTokens) multiply_many(blocks, x + token * x_stride, x_stride, tokens, floats);
            else multiply_few(blocks, x, x_stride, m, floats);
        }
}

// Rows of elements of `Size` bytes into [k, 16] and back, some inputs at a time so that both sides stay in the first-level cache.
constexpr size_t kCopied = 64;

template <size_t Size>
void interleave(const uint8_t* rows, size_t row_bytes, size_t count, size_t k, uint8_t* to) {
    if (count < kBlockRows) memset(to, 0, k * kBlockRows * Size);
    for (size_t from = 0; from < k; from += kCopied)
        for (size_t r = 0; r < count; ++r)
            for (size_t i = from; i < k && i < from + kCopied; ++i) memcpy(to + (i * kBlockRows + r) * Size, rows + r * row_bytes + i * Size, Size);
}

template <size_t Size>
void separate(const uint8_t* from, size_t k, uint8_t* rows, size_t row_bytes, size_t count) {
    for (size_t start = 0; start < k; start += kCopied)
        for (size_t r = 0; r < count; ++r)
            for (size_t i = start; i < k && i < start + kCopied; ++i) memcpy(rows + r * row_bytes + i * Size, from + (i * kBlockRows + r) * Size, Size);
}

template <int Format>
void row_of(const uint8_t* data, size_t k, float* out) {
    constexpr size_t kSize = element_bytes(Format), kBytes = kBlockRows * kSize;
    for (size_t from = 0; from < k; from += kLanes) {
        const size_t count = k - from < kLanes ? k - from : kLanes;
        uint8_t part[kLanes * kSize] = {};
        for (size_t i = 0; i < count; ++i) memcpy(part + i * kSize, data + (from + i) * kBytes, kSize);
        store_first(out + from, weights<Format>(part), count);
    }
}

size_t packed_bytes(int format, size_t n, size_t k, size_t) {
    return (n + kBlockRows - 1) / kBlockRows * kBlockRows * k * element_bytes(format);
}

void pack(const Matrix& matrix, const uint8_t* rows, size_t row_bytes, uint8_t* packed, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * element_bytes(matrix.format);
    for (size_t block = first; block < first + count; ++block) {
        const auto work = matrix.format == kF32 ? interleave<4> : interleave<2>;
        work(rows + block * kBlockRows * row_bytes, row_bytes, columns_of(matrix, block), matrix.k, packed + block * bytes);
    }
}

void unpack(const Matrix& matrix, uint8_t* rows, size_t row_bytes, size_t first, size_t count) {
    const size_t bytes = matrix.k * kBlockRows * element_bytes(matrix.format);
    for (size_t block = first; block < first + count; ++block) {
        const auto work = matrix.format == kF32 ? separate<4> : separate<2>;
        work(matrix.data + block * bytes, matrix.k, rows + block * kBlockRows * row_bytes, row_bytes, columns_of(matrix, block));
    }
}

void row(const Matrix& matrix, size_t row, float* out) {
    const size_t size = element_bytes(matrix.format);
    const auto work = matrix.format == kF32 ? row_of<kF32> : matrix.format == kF16 ? row_of<kF16> : row_of<kBF16>;
    work(matrix.data + row / kBlockRows * matrix.k * kBlockRows * size + row % kBlockRows * size, matrix.k, out);
}

}  // namespace

void multiply_floats(const Matrix& matrix, const float* x, size_t x_stride, size_t m, const Product& to, size_t first, size_t count,
                     uint8_t* scratch) {
    const auto scaled = matrix.format == kFP8 ? multiply<kFP8> : multiply<kNVFP4>;
    const auto work = matrix.format == kF32 ? multiply<kF32> : matrix.format == kF16 ? multiply<kF16> : matrix.format == kBF16 ? multiply<kBF16> : scaled;
    work(matrix, x, x_stride, m, to, first, count, scratch);
}

const FamilyKernels kFloats = {packed_bytes, pack, unpack, nullptr, row};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
