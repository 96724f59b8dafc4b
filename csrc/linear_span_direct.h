// Products of spans with a few tokens, straight from the records: at the speed of memory.
#pragma once

#include "linear_span.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Products of one part of a record with M tokens onto their integers.
template <class F, int M>
inline void add_part(const uint8_t* record, size_t part, const int8_t* codes, size_t stride, Ints* dot) {
    using Coding = typename F::Coding;
    constexpr int kBits = Coding::kBits;
    constexpr size_t kQuads = kGroupQuads / F::kParts, kSteps = kQuads < kRun<kBits> ? kQuads : kRun<kBits>;
    Factors by;
    if constexpr (kScaled<F>) by = factors<F::kScaleField>(record + Coding::kBytes + part * kBlockRows);
    RIDGELINE_UNROLL
    for (size_t run = part * kQuads; run < (part + 1) * kQuads; run += kSteps) {
        Pairs pairs[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kSteps; ++t) {
            const Quad w = Coding::quad(record, t);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) pairs[i] = products<kBits>(pairs[i], w, codes + i * stride + 4 * t);
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            if constexpr (kScaled<F>) dot[i] = dot[i] + widened(pairs[i], by);
            else dot[i] = dot[i] + widen<kBits>(pairs[i]);
        }
    }
}

// One span onto M accumulators.
template <class F, int M>
inline void direct_span(const uint8_t* head, const Tokens& x, size_t group, Vec* acc) {
    constexpr bool kBeside = kSpanMinima<F> || kCentredParts<F>;
    Ints dot[M], beside[M];
    Totals<F> totals[kBeside ? M : 1];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const int32_t* sums = x.sums + (i * x.groups + group) * 2;
        dot[i] = beside[i] = ints(0);
        if constexpr (kBeside) totals[i].gather(sums);
        if constexpr (kZerosOfRows<F>) dot[i] = (F::zeros(head) + ints(kSigned<F::Coding::kBits> ? 0 : F::kZero)) * ints(-total<F>(sums));
    }
    const uint8_t* record = head + F::kHead;
    const int8_t* codes = x.codes + group * kCodeGroup;
#pragma GCC unroll 1
    for (size_t g = 0; g < kSpanGroups<F>; ++g, record += kRecordBytes<F>, codes += kCodeGroup) {
        fetch(record + kAhead, kRecordBytes<F>);
        RIDGELINE_UNROLL
        for (size_t part = 0; part < F::kParts; ++part) add_part<F, M>(record, part, codes, x.stride, dot);
    }
    if constexpr (kBeside) {
        RIDGELINE_UNROLL
        for (size_t pair = 0; pair < kSpanParts<F> / 2; ++pair) {
            const Twins by = twins_of<F>(head + F::kHead, pair);
            RIDGELINE_UNROLL
            for (size_t i = 0; i < M; ++i) beside[i] = beside[i] + totals[i].times(by, pair);
        }
    }
    RIDGELINE_UNROLL
    for (size_t i = 0; i < M; ++i) {
        const float x_scale = x.scales[i * x.groups + group];
        if constexpr (kCentredParts<F>) dot[i] = dot[i] - beside[i] * ints(F::kZero);
        acc[i] = add_span(acc[i], dot[i], F::scale(head), x_scale);
        if constexpr (kSpanMinima<F>) acc[i] = add_minima(acc[i], beside[i], F::minimum(head), x_scale);
    }
}

// The 16 outputs of a block for `m` tokens, at most M.
template <class F, int M>
void direct_spans(size_t m, const uint8_t* block, size_t k, const Tokens& x, const Product& to, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return direct_spans<F, M - 1>(m, block, k, x, to, columns);
    Vec acc[M];
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    for (size_t group = 0; group < k / kCodeGroup; group += kSpanGroups<F>, block += kSpanBytes<F>) direct_span<F, M>(block, x, group, acc);
    for (size_t i = 0; i < M; ++i) write(acc[i], to.out + i * to.stride, columns);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
