// Products of a few tokens with packed records, read once in ascending order: at the speed of memory.
//
// Formats of groups have a scale for every 32 inputs, onto which their sums become fp32. Of formats of spans all inputs that share an
// activation scale are added up in integers: I = sum over parts of scale * sum of (code - zero) x, J = sum over parts of minimum * sum of x, in
// 32 bits, in any order; then, xs being the activations' scale, acc = fma(float(I), fp32(scale * xs), acc) and, of minima,
// acc = fma(float(J), -fp32(minimum * xs), acc). Where activations are stepped, xs is the smallest scale of the span and x a code times what its
// own scale is of that: what 32 codes add up to is shifted to the left.
#pragma once

#include "linear/direct_spans.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// acc += (integers of a part) * scale * activation's scale, minus minimum * activation's scale * (sum of the codes): the order that every
// kernel keeps. The sign is the sum's: the product's sign is then the same even of zeros.
inline Vec add_part(Vec acc, Vec dot, Vec scale, float x_scale) { return fma(dot, scale * all(x_scale), acc); }
inline Vec without_zeros(Ints dot, float minus_sum, Vec zeros) { return fma(all(minus_sum), zeros, floats(dot)); }
inline Vec add_minimum(Vec acc, int32_t sum, Vec minimum, float x_scale) {
    return fma(all(-static_cast<float>(sum)), minimum * all(x_scale), acc);
}

// A format may sum its records in a way of its own: `sums`.
template <class F>
constexpr bool kOwnSums = false;

// kBlocks records of 32 inputs, which share a scale, `apart` bytes from each other, onto their accumulators of M tokens.
template <class F, int M, int kBlocks>
inline void add_record(const uint8_t* head, const uint8_t* record, size_t apart, const Tokens& x, size_t group, Vec* acc) {
    using Coding = typename F::Coding;
    constexpr int kBits = Coding::kBits;
    static_assert(F::kParts == 1, "records of several parts are those of spans");
    Vec scale[kBlocks], minimum[kBlocks];
    RIDGELINE_UNROLL
    for (size_t j = 0; j < kBlocks; ++j) F::floats(head + j * apart, record + j * apart + Coding::kBytes, scale + j, minimum + j);
    const int8_t* of[M];
    int32_t sum[M];
    Ints dot[kBlocks * M];
    if constexpr (kOwnSums<F>) {
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kBlocks; ++j) F::template sums<M>(record + j * apart, x, group, dot + j * M);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks * M; ++i) acc[i] = add_part(acc[i], floats(dot[i]), scale[i / M], x.scales[i % M * x.groups + group]);
        return;
    }
    place_tokens<M, (kBlocks > 1)>(x.codes + group * kCodeGroup, x.stride, of);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const int32_t* s = x.sums + (i * x.groups + group) * 2;
        sum[i] = s[0] + s[1];
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kBlocks; ++j) dot[j * M + i] = ints(kSigned<kBits> ? 0 : -F::kZero * sum[i]);
    }
    RIDGELINE_UNROLL
    for (size_t run = 0; run < kGroupQuads; run += kRun<kBits>) {
        Pairs pairs[kBlocks * M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks * M; ++i) pairs[i] = no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kRun<kBits>; ++t) add_quad<Coding, M, kBlocks>(record, apart, t, of, pairs);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks * M; ++i) dot[i] = dot[i] + widen<kBits>(pairs[i]);
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const float x_scale = x.scales[i * x.groups + group];
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kBlocks; ++j) {
            Vec& to = acc[j * M + i];
            const Vec whole = kZerosOfRows<F> ? without_zeros(dot[j * M + i], -static_cast<float>(sum[i]), minimum[j]) : floats(dot[j * M + i]);
            to = add_part(to, whole, scale[j], x_scale);
            if (F::kMinima && !kZerosOfRows<F>) to = add_minimum(to, sum[i], minimum[j], x_scale);
        }
    }
}

// Some spans of blocks `apart` bytes from each other for M tokens, onto their accumulators, those of the first block first.
template <class F, int M, int kBlocks, int kStreams>
inline void add_stretch(const uint8_t* block, size_t apart, size_t spans, const Tokens& x, size_t group, Vec* acc) {
    constexpr int kShared = M > 1 ? kBlocks : 1;
    for (size_t span = 0; span < spans; ++span) {
        const uint8_t *head = block + span * kSpanBytes<F>, *record = head + F::kHead;
        for (size_t g = 0; g < F::kSpan / kCodeGroup; ++g, ++group, record += kRecordBytes<F>) {
            RIDGELINE_UNROLL
            for (size_t i = 0; i < kBlocks; i += kShared) {
                RIDGELINE_UNROLL
                for (size_t j = i; j < i + kShared; ++j) prefetch_record<kRecordBytes<F>, kStreams, M>(record + j * apart);
                add_record<F, M, kShared>(head + i * apart, record + i * apart, apart, x, group, acc + i * M);
            }
        }
    }
}

// Not inlined: beside the loops of other numbers of tokens and blocks this one lacks registers.
template <class F, int M, int kBlocks, int kStreams>
__attribute__((noinline)) void add_stretch_apart(const uint8_t* block, size_t apart, size_t spans, const Tokens& x, size_t group, Vec* to) {
    Vec acc[kBlocks * M];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kBlocks * M; ++i) acc[i] = to[i];
    add_stretch<F, M, kBlocks, kStreams>(block, apart, spans, x, group, acc);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kBlocks * M; ++i) to[i] = acc[i];
}

// Blocks `apart` bytes from each other for M tokens, onto their accumulators: some in work at once for kStretch inputs, then the others.
constexpr size_t kStretch = 256;
template <class F, int M, int kBlocks>
void add_records(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    constexpr int kHere = kAtOnce<M, kBlocks>;
    const size_t spans = k / F::kSpan;
    if constexpr (M == 1 || kBlocks == 1) return add_stretch<F, M, kBlocks, kBlocks>(block, apart, spans, x, 0, acc);
    for (size_t span = 0; span < spans; span += kStretch / F::kSpan) {
        const size_t here = spans - span < kStretch / F::kSpan ? spans - span : kStretch / F::kSpan;
        for (size_t i = 0; i < kBlocks; i += kHere)
            add_stretch_apart<F, M, kHere, kBlocks>(block + span * kSpanBytes<F> + i * apart, apart, here, x, span * F::kSpan / kCodeGroup, acc + i * M);
    }
}

template <class F, int M, int kBlocks>
void add_blocks(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    if constexpr (!F::kIntegerSpans) return add_records<F, M, kBlocks>(block, apart, k, x, acc);
    else if constexpr (!kBegun<F, M>)
        return kSteppable<F> && x.stepped ? add_spans<F, M, kBlocks, kSteppable<F>>(block, apart, k, x, acc)
                                          : add_spans<F, M, kBlocks, false>(block, apart, k, x, acc);
    else
        return kSteppable<F> && x.stepped ? add_spans_apart<F, M, kBlocks, kSteppable<F>>(block, apart, k, x, acc)
                                          : add_spans_apart<F, M, kBlocks, false>(block, apart, k, x, acc);
}

// Sums of M tokens with kBlocks blocks `apart` bytes from each other, those of the first block first; for `m`, at most M.
template <class F, int M, int kBlocks>
__attribute__((noinline)) void direct_of(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* sums) {
    Vec acc[kBlocks * M];
    for (Vec& each : acc) each = zero();
    add_blocks<F, M, kBlocks>(block, apart, k, x, acc);
    for (size_t i = 0; i < kBlocks * M; ++i) sums[i] = acc[i];
}
template <class F, int M, int kBlocks>
void direct(size_t m, const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* sums) {
    if constexpr (M > 1)
        if (m < M) return direct<F, M - 1, kBlocks>(m, block, apart, k, x, sums);
    direct_of<F, M, kBlocks>(block, apart, k, x, sums);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
