// Products of a few tokens with packed records, read once in ascending order: at the speed of memory.
//
// Formats of groups have a scale for every 32 inputs, onto which their sums become fp32. Of formats of spans all inputs that share an
// activation scale are added up in integers: I = sum over parts of scale * sum of (code - zero) x, J = sum over parts of minimum * sum of x, in
// 32 bits, in any order; then, xs being the activations' scale, acc = fma(float(I), fp32(scale * xs), acc) and, of minima,
// acc = fma(float(J), -fp32(minimum * xs), acc). Where activations are stepped, xs is the smallest scale of the span and x a code times what its
// own scale is of that: what 32 codes add up to is shifted to the left.
#pragma once

#include "linear/codes.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Bytes between the record in work and the one that is fetched from memory; and from there back to the one that is fetched from the second-level
// cache into the first.
constexpr size_t kAhead = 4096, kBack = 3584;
// One token waits for memory and reads kReadStreams blocks in turn, record by record: a core has more lines of several streams on their way
// than of one. Each has its share of kInFlight bytes fetched ahead, at a level without many lines on their way half of it where records take
// few instructions a byte.
constexpr size_t kLargeRecord = 512;
template <size_t kBytes, int kStreams>
constexpr size_t kFar = kInFlight / kStreams / (kBytes >= kLargeRecord && kReadStreams == 2 ? 2 : 1);

// Activations of up to M tokens, from the first of them.
struct Tokens {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
    size_t stride, groups;               // from token to token: codes; scales, and half of the sums
    const uint32_t* starts = nullptr;    // [groups, 4] of a format that sums records its own way; [parts, kSpanRecordTokens] where kBegun
    bool stepped = false;
};

inline Tokens tokens(const Codes& x, size_t k, size_t from) {
    const size_t groups = k / kCodeGroup;
    return {x.codes + from * x.stride, x.scales + from * groups, x.sums + from * groups * 2, x.stride, groups, nullptr, x.stepped};
}
inline Tokens tokens_from(const Tokens& x, size_t from) {
    return {x.codes + from * x.stride, x.scales + from * x.groups, x.sums + from * x.groups * 2, x.stride, x.groups, nullptr, x.stepped};
}

// Of one stream records come from memory into the second-level cache, which bears more lines on their way than the first, and from there into
// the first. Of several the processor fetches the rest by itself, or they come into the first at once.
template <size_t kBytes, int kStreams>
inline void prefetch_record(const uint8_t* record) {
    if constexpr (kStreams == 1) {
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kAhead + line, 0, 2);
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kAhead - kBack + line, 0, 3);
    } else {
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(record + kFar<kBytes, kStreams> + line, 0, kFetchLevel);
    }
}

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
    if constexpr (kOwnSums<F>) {
        F::template sums<M>(record, x, group, dot);
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) acc[i] = add_part(acc[i], floats(dot[i]), scale, x.scales[i * x.groups + group]);
        return;
    }
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
                prefetch_record<kRecordBytes<F>, kBlocks>(record + i * apart);
                add_record<F, M>(head + i * apart, record + i * apart, x, group, acc + i * M);
            }
        }
    }
}

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

// Products of one part of a record with M tokens onto their integers. starts: [M] if kBegun.
template <class F, int M>
inline void add_part(const uint8_t* record, size_t part, const int8_t* codes, size_t stride, const uint32_t* starts, Ints* dot) {
    using Coding = typename F::Coding;
    constexpr int kBits = Coding::kBits;
    constexpr size_t kQuads = kGroupQuads / F::kParts, kSteps = kBegun<F, M> || kQuads < kRun<kBits> ? kQuads : kRun<kBits>;
    Factors by;
    if constexpr (kScaled<F>) by = factors<F::kScaleField>(record + Coding::kBytes + part * kBlockRows);
    RIDGELINE_UNROLL
    for (size_t run = part * kQuads; run < (part + 1) * kQuads; run += kSteps) {
        Pairs pairs[M];
        RIDGELINE_UNROLL
        for (size_t i = 0; i < M; ++i) pairs[i] = kBegun<F, M> ? __builtin_bit_cast(Pairs, ints(static_cast<int32_t>(starts[i]))) : no_pairs();
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
// steps: [M] if kStepped.
template <class F, int M, int kBlocks, bool kStepped>
inline void add_span_records(const uint8_t* record, size_t apart, const Tokens& x, size_t group, const Steps* steps, Ints* dot) {
    constexpr size_t kStarts = kBegun<F, M> ? kSpanRecordTokens : 0;     // words of a part
    const int8_t* codes = x.codes + group * kCodeGroup;
    const uint32_t* starts = x.starts + group * F::kParts * kStarts;
#pragma GCC unroll 1
    for (size_t g = 0; g < kSpanGroups<F>; ++g, record += kRecordBytes<F>, codes += kCodeGroup, starts += F::kParts * kStarts) {
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kBlocks; ++i) {
            prefetch_record<kRecordBytes<F>, kBlocks>(record + i * apart);
            Ints own[M], *sums = kStepped ? own : dot + i * M;
            RIDGELINE_UNROLL
            for (size_t token = 0; token < M && kStepped; ++token) own[token] = ints(0);
            RIDGELINE_UNROLL
            for (size_t part = 0; part < F::kParts; ++part) add_part<F, M>(record + i * apart, part, codes, x.stride, starts + part * kStarts, sums);
            RIDGELINE_UNROLL
            for (size_t token = 0; token < M && kStepped; ++token) dot[i * M + token] = dot[i * M + token] + lifted(own[token], steps[token].by[g]);
        }
    }
}

// One span of these blocks onto their accumulators.
template <class F, int M, int kBlocks, bool kStepped>
inline void direct_span(const uint8_t* first, size_t apart, const Tokens& x, size_t group, Vec* acc) {
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
    add_span_records<F, M, kBlocks, kStepped>(first + F::kHead, apart, x, group, steps, dot);
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
            const float x_scale = kStepped ? steps[i].scale : x.scales[i * x.groups + group];
            Ints sum = dot[block * M + i];
            if constexpr (kCentre) sum = sum - beside[i] * ints(F::kZero);
            acc[i] = add_span(acc[i], sum, F::scale(head), x_scale);
            if constexpr (kSpanMinima<F>) acc[i] = add_minima(acc[i], beside[i], F::minimum(head), x_scale);
        }
    }
}

// As add_records.
template <class F, int M, int kBlocks, bool kStepped>
void add_spans(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    for (size_t group = 0; group < k / kCodeGroup; group += kSpanGroups<F>, block += kSpanBytes<F>)
        direct_span<F, M, kBlocks, kStepped>(block, apart, x, group, acc);
}

// Not inlined: beside the loops of other numbers of tokens this one lacks registers.
template <class F, int M, int kBlocks, bool kStepped>
__attribute__((noinline)) void add_spans_apart(const uint8_t* block, size_t apart, size_t k, const Tokens& x, Vec* acc) {
    add_spans<F, M, kBlocks, kStepped>(block, apart, k, x, acc);
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

// The 16 outputs of a block for M tokens; for `m`, at most M.
template <class F, int M>
void direct_of(const uint8_t* block, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    Vec acc[M];
    for (size_t i = 0; i < M; ++i) acc[i] = zero();
    add_blocks<F, M, 1>(block, 0, k, x, acc);
    for (size_t i = 0; i < M; ++i) write(acc[i], out + i * out_stride, columns);
}
template <class F, int M>
void direct(size_t m, const uint8_t* block, size_t k, const Tokens& x, float* out, size_t out_stride, size_t columns) {
    if constexpr (M > 1)
        if (m < M) return direct<F, M - 1>(m, block, k, x, out, out_stride, columns);
    direct_of<F, M>(block, k, x, out, out_stride, columns);
}

// Outputs of one token for `count` blocks, kStreams of them at a time, and for what is left fewer: in streams of ascending blocks.
template <class F, int kStreams = kReadStreams>
void multiply_streams(const Matrix& matrix, const Tokens& x, float* out, size_t first, size_t count) {
    const size_t bytes = block_bytes<F>(matrix.k), apart = count / kStreams;
    for (size_t block = first; block < first + apart; ++block) {
        Vec acc[kStreams];
        for (Vec& sum : acc) sum = zero();
        add_blocks<F, 1, kStreams>(matrix.data + block * bytes, apart * bytes, matrix.k, x, acc);
        for (size_t i = 0; i < kStreams; ++i) write(acc[i], out + (block + i * apart) * kBlockRows, columns_of(matrix, block + i * apart));
    }
    if constexpr (kStreams > 1) multiply_streams<F, kStreams / 2>(matrix, x, out, first + kStreams * apart, count - kStreams * apart);
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
