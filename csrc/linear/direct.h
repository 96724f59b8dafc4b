// Products of a few tokens with packed records, read once in ascending order: at the speed of memory.
#pragma once

#include "linear/formats.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Bytes between the record in work and the one that is fetched from memory; and from there back to the one that is fetched from the second-level
// cache into the first.
constexpr size_t kAhead = 4096, kBack = 3584;
// One token waits for memory and reads two blocks in turn, record by record: a core has more lines of two streams on their way than of one. Its
// records are fetched that far ahead; those that take few instructions a byte less far.
constexpr int kStreams = 2;
constexpr size_t kNear = 1024, kNearest = 512;

// Activations of up to M tokens, from the first of them.
struct Tokens {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
    size_t stride, groups;               // from token to token: codes; scales, and half of the sums
    const uint32_t* starts = nullptr;    // [groups, 4] of a format of centred sums: see `prepare_starts`
};

inline Tokens tokens(const Codes& x, size_t k, size_t from) {
    const size_t groups = k / kCodeGroup;
    return {x.codes + from * x.stride, x.scales + from * groups, x.sums + from * groups * 2, x.stride, groups};
}

// Of one stream records come from memory into the second-level cache, which bears more lines on their way than the first, and from there into
// the first. Of several the processor foresees the rest.
template <size_t kBytes, int kStreams>
inline void fetch(const uint8_t* record) {
    constexpr size_t kFar = kStreams == 1 ? kAhead : kBytes < 512 ? kNear : kNearest;
    for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kFar + line, 0, 2);
    for (size_t line = 0; line < kBytes && kStreams == 1; line += 64) __builtin_prefetch(record + kAhead - kBack + line, 0, 3);
}

// acc += (integers of a part) * scale * activation's scale, minus minimum * activation's scale * (sum of the codes): the order that every
// kernel keeps. The sign is the sum's: the product's sign is then the same even of zeros.
inline Vec add_part(Vec acc, Vec dot, Vec scale, float x_scale) { return fma(dot, scale * all(x_scale), acc); }
inline Vec without_zeros(Ints dot, float minus_sum, Vec zeros) { return fma(all(minus_sum), zeros, floats(dot)); }
inline Vec add_minimum(Vec acc, int32_t sum, Vec minimum, float x_scale) {
    return fma(all(-static_cast<float>(sum)), minimum * all(x_scale), acc);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Sums of 16 bits hold a whole group of 5-bit products with code - 16 (16 * 16 * 127 < 2^15), where those with codes are widened twice. For three
// tokens and more that begin with -16 times their inputs is faster.
template <class F, int M>
constexpr bool kCentredSums = M > 2 && F::Coding::kBits == 5 && F::kZero == 16;

// -16 times the sum of a group's inputs, in pairs as products add them up, of `m` tokens, at most 4.
inline void prepare_starts(const Codes& x, size_t m, size_t groups, uint32_t* starts) {
    for (size_t group = 0; group < groups; ++group)
        for (size_t i = 0; i < m; ++i) {
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.codes + i * x.stride + group * kCodeGroup));
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
            __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
            sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x4e));
            sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0xb1));
            starts[4 * group + i] = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_mullo_epi16(sum, _mm_set1_epi16(-16))));
        }
}

// The integers of a record's products with code - 16.
template <class F, int M>
inline void centred_sums(const uint8_t* record, const Tokens& x, size_t group, Ints* dot) {
    constexpr int kBits = F::Coding::kBits;
    Pairs pairs[M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) pairs[i].a = pairs[i].b = _mm256_set1_epi32(static_cast<int32_t>(x.starts[4 * group + i]));
    RIDGELINE_UNROLL
    for (size_t t = 0; t < kGroupQuads; ++t) {
        const Quad w = F::Coding::quad(record, t);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = products<kBits>(pairs[i], w, x.codes + group * kCodeGroup + i * x.stride + 4 * t);
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) dot[i] = widen<kBits>(pairs[i]);
}
#else
template <class F, int M>
constexpr bool kCentredSums = false;
#endif

// One record of 32 inputs, which share a scale, onto M accumulators.
template <class F, int M>
inline void add_record(const uint8_t* head, const uint8_t* record, const Tokens& x, size_t group, Vec* acc) {
    using Coding = typename F::Coding;
    constexpr int kBits = Coding::kBits;
    static_assert(F::kParts == 1, "records of several parts are those of spans");
    Vec scale, minimum;
    F::floats(head, record + Coding::kBytes, &scale, &minimum);
    const int8_t* codes = x.codes + group * kCodeGroup;
    int32_t sum[M];
    Ints dot[M];
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (kCentredSums<F, M>) {
        centred_sums<F, M>(record, x, group, dot);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) acc[i] = add_part(acc[i], floats(dot[i]), scale, x.scales[i * x.groups + group]);
        return;
    }
#endif
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const int32_t* s = x.sums + (i * x.groups + group) * 2;
        sum[i] = s[0] + s[1];
        dot[i] = ints(kSigned<kBits> ? 0 : -F::kZero * sum[i]);
    }
    RIDGELINE_UNROLL
    for (size_t run = 0; run < kGroupQuads; run += kRun<kBits>) {
        Pairs pairs[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kRun<kBits>; ++t) {
            const Quad w = Coding::quad(record, t);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) pairs[i] = products<kBits>(pairs[i], w, codes + i * x.stride + 4 * t);
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) dot[i] = dot[i] + widen<kBits>(pairs[i]);
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const float x_scale = x.scales[i * x.groups + group];
        const Vec whole = kZerosOfRows<F> ? without_zeros(dot[i], -static_cast<float>(sum[i]), minimum) : floats(dot[i]);
        acc[i] = add_part(acc[i], whole, scale, x_scale);
        if (F::kMinima && !kZerosOfRows<F>) acc[i] = add_minimum(acc[i], sum[i], minimum, x_scale);
    }
}

inline void write(Vec sum, float* out, size_t columns) { columns == kBlockRows ? store(out, sum) : store_first(out, sum, columns); }

// Blocks `apart` bytes from each other for M tokens, onto their accumulators, those of the first block first.
template <class F, int M, int kBlocks>
void add_records(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    size_t group = 0;
    for (size_t span = 0; span < k / F::kSpan; ++span) {
        const uint8_t *head = block + span * kSpanBytes<F>, *record = head + F::kHead;
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, ++group, record += kRecordBytes<F>) {
            RIDGELINE_UNROLL
            for (size_t i = 0; i < kBlocks; ++i) {
                fetch<kRecordBytes<F>, kBlocks>(record + i * apart);
                add_record<F, M>(head + i * apart, record + i * apart, x, group, acc + i * M);
            }
        }
    }
}

// The 16 outputs of a block for `m` tokens, at most M.
template <class F, int M>
void direct(size_t m, const uint8_t* block, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return direct<F, M - 1>(m, block, k, x, out, out_stride, columns);
    Vec acc[M];
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    add_records<F, M, 1>(block, 0, k, x, acc);
    for (size_t i = 0; i < M; ++i) write(acc[i], out + i * out_stride, columns);
}

// How many of `count` blocks lie between those that m tokens read together; 0 where each is read alone.
inline size_t blocks_apart(size_t m, size_t count) { return m == 1 ? count / kStreams : 0; }

inline size_t columns_of(const Matrix& matrix, size_t block) {
    const size_t left = matrix.n - block * kBlockRows;
    return left < kBlockRows ? left : kBlockRows;
}

// Outputs of one token for the kStreams * `apart` blocks from `first` on; `add` is add_records or what does its work.
template <class F>
void multiply_streams(const Matrix& matrix, const Tokens& x, float* out, size_t first, size_t apart,
                      void (*add)(const uint8_t*, size_t, size_t, const Tokens&, Vec*)) {
    const size_t bytes = block_bytes<F>(matrix.k);
    for (size_t block = first; block < first + apart; ++block) {
        Vec acc[kStreams];
        for (Vec& sum : acc) sum = zero();
        add(matrix.data + block * bytes, apart * bytes, matrix.k, x, acc);
        for (size_t i = 0; i < kStreams; ++i) write(acc[i], out + (block + i * apart) * kBlockRows, columns_of(matrix, block + i * apart));
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
