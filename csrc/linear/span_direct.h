// Products of spans with a few tokens, straight from the records: at the speed of memory.
#pragma once

#include "linear/span.h"

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

// Blocks `apart` bytes from each other for M tokens, one span of each: onto the integers of their outputs, those of the first block first.
template <class F, int M, int kBlocks>
inline void add_span_records(const uint8_t* record, size_t apart, const int8_t* codes, size_t stride, Ints* dot) {
#pragma GCC unroll 1
    for (size_t g = 0; g < kSpanGroups<F>; ++g, record += kRecordBytes<F>, codes += kCodeGroup) {
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks; ++i) {
            fetch<kRecordBytes<F>, kBlocks>(record + i * apart);
            RIDGELINE_UNROLL
            for (size_t part = 0; part < F::kParts; ++part) add_part<F, M>(record + i * apart, part, codes, stride, dot + i * M);
        }
    }
}

// One span of these blocks onto their accumulators.
template <class F, int M, int kBlocks>
inline void direct_span(const uint8_t* first, size_t apart, const Tokens& x, size_t group, Vec* acc) {
    constexpr bool kBeside = kSpanMinima<F> || kCentredParts<F>;
    Ints dot[kBlocks * M];
    Totals<F> totals[kBeside ? M : 1];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kBlocks * M; ++i) {
        const int32_t* sums = x.sums + (i % M * x.groups + group) * 2;
        dot[i] = ints(0);
        if constexpr (kBeside)
            if (i < M) totals[i].gather(sums);
        if constexpr (kZerosOfRows<F>)
            dot[i] = (F::zeros(first + i / M * apart) + ints(kSigned<F::Coding::kBits> ? 0 : F::kZero)) * ints(-total<F>(sums));
    }
    add_span_records<F, M, kBlocks>(first + F::kHead, apart, x.codes + group * kCodeGroup, x.stride, dot);
    RIDGELINE_UNROLL
    for (size_t block = 0; block < kBlocks; ++block, acc += M) {
        const uint8_t* head = first + block * apart;
        Ints beside[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) beside[i] = ints(0);
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
            Ints sum = dot[block * M + i];
            if constexpr (kCentredParts<F>) sum = sum - beside[i] * ints(F::kZero);
            acc[i] = add_span(acc[i], sum, F::scale(head), x_scale);
            if constexpr (kSpanMinima<F>) acc[i] = add_minima(acc[i], beside[i], F::minimum(head), x_scale);
        }
    }
}

// As add_records.
template <class F, int M, int kBlocks>
void add_spans(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    for (size_t group = 0; group < k / kCodeGroup; group += kSpanGroups<F>, block += kSpanBytes<F>)
        direct_span<F, M, kBlocks>(block, apart, x, group, acc);
}

// The 16 outputs of a block for `m` tokens, at most M.
template <class F, int M>
void direct_spans(size_t m, const uint8_t* block, size_t k, const Tokens& x, const Product& to, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return direct_spans<F, M - 1>(m, block, k, x, to, columns);
    Vec acc[M];
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    add_spans<F, M, 1>(block, 0, k, x, acc);
    for (size_t i = 0; i < M; ++i) write(acc[i], to.out + i * to.stride, columns);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
