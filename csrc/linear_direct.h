// Products of a few tokens with packed records, read once in ascending order: at the speed of memory.
#pragma once

#include "linear_formats.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kAhead = 4096;          // bytes between the record in work and the one that is fetched from memory
constexpr size_t kBack = 3584;           // bytes from there back to the one that is fetched from the second-level cache into the first

// Activations of up to M tokens, from the first of them.
struct Tokens {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
    size_t stride, groups;               // from token to token: codes; scales, and half of the sums
};

inline Tokens tokens(const Codes& x, size_t k, size_t from) {
    const size_t groups = k / kCodeGroup;
    return {x.codes + from * x.stride, x.scales + from * groups, x.sums + from * groups * 2, x.stride, groups};
}

// Records come from memory into the second-level cache, which bears more lines on their way than the first, and from there into the first.
inline void fetch(const uint8_t* p, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(p + line, 0, 2);
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(p - kBack + line, 0, 3);
}

// acc += (integers of a part) * scale * activation's scale, minus minimum * activation's scale * (sum of the codes): the order that every
// kernel keeps. The sign is the sum's: the product's sign is then the same even of zeros.
inline Vec add_part(Vec acc, Vec dot, Vec scale, float x_scale) { return fma(dot, scale * all(x_scale), acc); }
inline Vec without_zeros(Ints dot, float minus_sum, Vec zeros) { return fma(all(minus_sum), zeros, floats(dot)); }
inline Vec add_minimum(Vec acc, int32_t sum, Vec minimum, float x_scale) {
    return fma(all(-static_cast<float>(sum)), minimum * all(x_scale), acc);
}

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

// The 16 outputs of a block for M tokens.
template <class F, int M>
void direct_block(const uint8_t* block, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    Vec acc[M];
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    size_t group = 0;
    for (size_t span = 0; span < k / F::kSpan; ++span) {
        const uint8_t *head = block + span * kSpanBytes<F>, *record = head + F::kHead;
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, ++group, record += kRecordBytes<F>) {
            fetch(record + kAhead, kRecordBytes<F>);
            add_record<F, M>(head, record, x, group, acc);
        }
    }
    for (size_t i = 0; i < M; ++i) write(acc[i], out + i * out_stride, columns);
}

// `m` tokens, at most M.
template <class F, int M>
void direct(size_t m, const uint8_t* block, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return direct<F, M - 1>(m, block, k, x, out, out_stride, columns);
    direct_block<F, M>(block, k, x, out, out_stride, columns);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
