// Products of a few tokens with spans straight from their records: linear/direct.h says what is added up, and in which order.
#pragma once

#include "linear/few.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// What formats of spans have.
template <class F>
constexpr size_t kSpanGroups = F::kSpan / kCodeGroup;
template <class F>
constexpr size_t kSpanParts = kSpanGroups<F> * F::kParts;
template <class F>
constexpr bool kSpanMinima = F::kMinima && !kZerosOfRows<F>;
template <class F>
constexpr bool kScaled = F::kScaleField != Field::kNone;
template <class F>
constexpr bool kSteppable = kScaled<F> && F::kSpan == kSteppedGroup;
template <class F>
constexpr bool kCentredParts = kScaled<F> && F::kZero > 0;

// Whether what several tokens add up of a part begins with -centre times its inputs: where 16 bits hold products with code - centre, but not
// those with codes (16 * 16 * 127 < 2^15).
template <class F, int M>
constexpr bool kBegun = M > 1 && kCentredParts<F> && F::Coding::kBits < 7 && kRun<F::Coding::kBits> < kGroupQuads / F::kParts;
template <class F>
constexpr bool begins() {
    if constexpr (F::kIntegerSpans) return kBegun<F, 2>;
    else return false;
}
template <class F>
constexpr int kTogether = F::kIntegerSpans ? kSpanRecordTokens : kRecordTokens;

// Integers of two neighbouring parts that belong to sums of inputs: minima, or the scales of what has a centre. Whole minima lie behind scales.
template <class F>
inline Twins twins_of(const uint8_t* record, size_t pair) {
    constexpr size_t kPlace = F::Coding::kBytes + (F::kScaleField == Field::kByte ? F::kParts * kBlockRows : 0);
    const uint8_t* first = record + (F::kParts == 2 ? pair : 2 * pair) * kRecordBytes<F> + kPlace;
    const uint8_t* second = first + (F::kParts == 2 ? kBlockRows : kRecordBytes<F>);
    if constexpr (F::kMinima) return twins<F::kMinimumField>(first, second);
    else return twins<F::kScaleField>(first, second);
}

// Whether any of m tokens is stepped.
template <class F>
bool any_stepped(const Codes& x, size_t k, size_t m) {
    if constexpr (kSteppable<F>)
        for (size_t at = 0; at < m * (k / kCodeGroup); at += kSpanGroups<F>)
            if (memcmp(x.scales + at, x.scales + at + 1, (kSpanGroups<F> - 1) * sizeof(float)) != 0) return true;
    return false;
}

// What parts begin with, of m tokens of k inputs: starts [parts, kSpanRecordTokens], that of the first two inputs of each four in the lower half of
// a word, that of the others in the upper one. Codes are added up four pairs at a time, 128 larger than they are.
template <class F>
void begin_parts(const Tokens& x, size_t m, size_t k, uint32_t* starts) {
    constexpr size_t kInputs = kCodeGroup / F::kParts;
    constexpr uint64_t kEven = 0x00ff00ff00ff00ffu;
    const auto centred = [](uint64_t sum) {
        return static_cast<uint16_t>(-F::kZero * (static_cast<int32_t>(sum & 0xffff) - 64 * static_cast<int32_t>(kInputs)));
    };
    for (size_t part = 0; part < k / kInputs; ++part)
        for (size_t i = 0; i < m; ++i) {
            uint64_t sums = 0;
            for (size_t at = 0; at < kInputs; at += 8) {
                uint64_t eight;
                memcpy(&eight, x.codes + i * x.stride + part * kInputs + at, 8);
                eight ^= 0x8080808080808080u;
                sums += (eight & kEven) + (eight >> 8 & kEven);
            }
            sums += sums >> 32;
            starts[part * kSpanRecordTokens + i] = centred(sums) | static_cast<uint32_t>(centred(sums >> 16)) << 16;
        }
}

// How far what the groups of a span add up to is shifted to the left, and the scale of all of it. Scales that differ are powers of two apart, and
// normal numbers: their order is that of their bits.
struct Steps {
    uint32_t by[kSteppedGroup / kCodeGroup];
    float scale;
    void gather(const float* scales) {
        memcpy(by, scales, sizeof by);
        uint32_t least = by[0];
        for (uint32_t each : by) least = each < least ? each : least;
        memcpy(&scale, &least, sizeof scale);
        for (uint32_t& each : by) each = (each - least) >> 23;
    }
};

// Sums of 16 inputs each, of a whole span.
template <class F>
inline int32_t total(const int32_t* sums) {
    int32_t sum = 0;
    for (size_t i = 0; i < F::kSpan / 16; ++i) sum += sums[i];
    return sum;
}

// Onto the accumulator of a token: the integers of a span, and of its minima.
inline Vec add_span(Vec acc, Ints dot, Vec scale, float x_scale) { return fma(floats(dot), scale * all(x_scale), acc); }
inline Vec add_minima(Vec acc, Ints dot, Vec minimum, float x_scale) { return fma(floats(dot), minimum * all(-x_scale), acc); }

// A start in every row. Where it is wanted, compilers put it together in memory.
inline Pairs begun(uint32_t start) {
    const Ints word = ints(static_cast<int32_t>(start));
    return __builtin_bit_cast(Pairs, word);
}

// Products of one part of kBlocks records, `apart` bytes from each other, with M tokens onto their integers. starts: [M] if kBegun.
template <class F, int M, int kBlocks>
inline void add_part(const uint8_t* record, size_t apart, size_t part, const int8_t* codes, size_t stride, const uint32_t* starts, Ints* dot) {
    using Coding = typename F::Coding;
    constexpr int kBits = Coding::kBits;
    constexpr size_t kQuads = kGroupQuads / F::kParts, kSteps = kBegun<F, M> || kQuads < kRun<kBits> ? kQuads : kRun<kBits>;
    const int8_t* of[M];
    place_tokens<M, (kBlocks > 1)>(codes, stride, of);
    Factors by[kBlocks];
    RIDGELINE_UNROLL
    for (size_t j = 0; j < kBlocks; ++j)
        if constexpr (kScaled<F>) by[j] = factors<F::kScaleField>(record + j * apart + Coding::kBytes + part * kBlockRows);
    RIDGELINE_UNROLL
    for (size_t run = part * kQuads; run < (part + 1) * kQuads; run += kSteps) {
        Pairs pairs[kBlocks * M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks * M; ++i) pairs[i] = kBegun<F, M> ? begun(starts[i % M]) : no_pairs();
        RIDGELINE_UNROLL
        for (size_t t = run; t < run + kSteps; ++t) add_quad<Coding, M, kBlocks>(record, apart, t, of, pairs);
        RIDGELINE_UNROLL
        for (size_t j = 0; j < kBlocks; ++j) {
            RIDGELINE_UNROLL
            for (size_t i = j * M; i < (j + 1) * M; ++i) {
                if constexpr (kScaled<F>) dot[i] = dot[i] + widened(pairs[i], by[j]);
                else dot[i] = dot[i] + widen<kBits>(pairs[i]);
            }
        }
    }
}

// Blocks `apart` bytes from each other for M tokens, one span of each: onto the integers of their outputs, those of the first block first.
// steps: [M] if kStepped.
template <class F, int M, int kBlocks, int kStreams, bool kStepped>
inline void add_span_records(const uint8_t* record, size_t apart, const Tokens& x, size_t group, const Steps* steps, Ints* dot) {
    constexpr int kShared = M > 1 ? kBlocks : 1;
    constexpr size_t kStarts = kBegun<F, M> ? kSpanRecordTokens : 0;     // words of a part
    const int8_t* codes = x.codes + group * kCodeGroup;
    const uint32_t* starts = x.starts + group * F::kParts * kStarts;
#pragma GCC unroll 1
    for (size_t g = 0; g < kSpanGroups<F>; ++g, record += kRecordBytes<F>, codes += kCodeGroup, starts += F::kParts * kStarts) {
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks; i += kShared) {
            RIDGELINE_UNROLL
            for (size_t j = i; j < i + kShared; ++j) prefetch_record<kRecordBytes<F>, kStreams, M>(record + j * apart);
            Ints own[kShared * M], *sums = kStepped ? own : dot + i * M;
            RIDGELINE_UNROLL
            for (size_t j = 0; j < kShared * M && kStepped; ++j) own[j] = ints(0);
            RIDGELINE_UNROLL
            for (size_t part = 0; part < F::kParts; ++part)
                add_part<F, M, kShared>(record + i * apart, apart, part, codes, x.stride, starts + part * kStarts, sums);
            RIDGELINE_UNROLL
            for (size_t j = 0; j < kShared * M && kStepped; ++j) dot[i * M + j] = dot[i * M + j] + lifted(own[j], steps[j % M].by[g]);
        }
    }
}

// One span of these blocks onto their accumulators.
template <class F, int M, int kBlocks, int kStreams, bool kStepped>
__attribute__((always_inline)) inline void direct_span(const uint8_t* first, size_t apart, const Tokens& x, size_t group, Vec* acc) {
    constexpr bool kCentre = kCentredParts<F> && !kBegun<F, M>, kBeside = kSpanMinima<F> || kCentre;
    Steps steps[kStepped ? M : 1];
    for (size_t i = 0; i < M && kStepped; ++i) steps[i].gather(x.scales + i * x.groups + group);
    Ints dot[kBlocks * M];
    Totals<F::kParts> totals[kBeside ? M : 1];
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kBlocks * M; ++i) {
        const int32_t* sums = x.sums + (i % M * x.groups + group) * 2;
        dot[i] = ints(0);
        if constexpr (kBeside)
            if (i < M) totals[i].gather(sums);
        if constexpr (kZerosOfRows<F>)
            dot[i] = (F::zeros(first + i / M * apart) + ints(kSigned<F::Coding::kBits> ? 0 : F::kZero)) * ints(-total<F>(sums));
    }
    add_span_records<F, M, kBlocks, kStreams, kStepped>(first + F::kHead, apart, x, group, steps, dot);
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
                for (size_t i = 0; i < M; ++i) beside[i] = totals[i].onto(beside[i], by, pair);
            }
        }
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) {
            const float x_scale = kStepped ? steps[i].scale : x.scales[i * x.groups + group];
            Ints sum = dot[block * M + i];
            if constexpr (kCentre) sum = sum - beside[i] * ints(F::kZero);
            acc[i] = add_span(acc[i], sum, F::scale(head), x_scale);
            if constexpr (kSpanMinima<F>) acc[i] = add_minima(acc[i], beside[i], F::minimum(head), x_scale);
        }
    }
}

// Not inlined: beside the loops of other numbers of tokens and blocks this one lacks registers.
template <class F, int M, int kBlocks, int kStreams, bool kStepped>
__attribute__((noinline)) void direct_span_apart(const uint8_t* first, size_t apart, const Tokens& x, size_t group, Vec* acc) {
    direct_span<F, M, kBlocks, kStreams, kStepped>(first, apart, x, group, acc);
}

// As add_records.
template <class F, int M, int kBlocks, bool kStepped>
void add_spans(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    constexpr int kHere = kAtOnce<M, kBlocks>;
    for (size_t group = 0; group < k / kCodeGroup; group += kSpanGroups<F>, block += kSpanBytes<F>) {
        if constexpr (M == 1 || kBlocks == 1) direct_span<F, M, kBlocks, kBlocks, kStepped>(block, apart, x, group, acc);
        else
            for (size_t i = 0; i < kBlocks; i += kHere)
                direct_span_apart<F, M, kHere, kBlocks, kStepped>(block + i * apart, apart, x, group, acc + i * M);
    }
}

// Not inlined: beside the loops of other numbers of tokens this one lacks registers.
template <class F, int M, int kBlocks, bool kStepped>
__attribute__((noinline)) void add_spans_apart(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    add_spans<F, M, kBlocks, kStepped>(block, apart, k, x, acc);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
