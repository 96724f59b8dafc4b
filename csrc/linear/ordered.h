// Instructions of the AVX2 level in the order in which they are written: the compiler neither moves nor joins them.
//
// Zen 3 chooses one of four vector pipes for an instruction when it enters the queue, and products go to two of them only. Products and additions
// in turn crowd those two (5.3 cycles for 8 and 8); two products, then two additions of products made two tokens before, do so less (4.7).
#pragma once

#include "linear/quads.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Memory of any type, as the asm statements read it.
struct __attribute__((may_alias, packed)) Word { uint32_t value; };
struct __attribute__((may_alias, packed)) Row { uint8_t value[32]; };

inline __m256i ordered_load(const void* p) {
    __m256i r;
    asm volatile("vmovdqu %1, %0" : "=x"(r) : "m"(*static_cast<const Row*>(p)));
    return r;
}
inline __m256i ordered_broadcast(const void* p) {
    __m256i r;
    asm volatile("vpbroadcastd %1, %0" : "=x"(r) : "m"(*static_cast<const Word*>(p)));
    return r;
}
// Sums of two products: of unsigned bytes with signed ones in 16 bits, or of 16-bit integers in 32.
template <bool kBytes>
inline __m256i ordered_products(__m256i w, __m256i x) {
    __m256i r;
    if (kBytes)
        asm volatile("vpmaddubsw %2, %1, %0" : "=x"(r) : "x"(w), "x"(x));
    else
        asm volatile("vpmaddwd %2, %1, %0" : "=x"(r) : "x"(w), "x"(x));
    return r;
}
template <bool kBytes>
inline __m256i ordered_sum(__m256i sum, __m256i x) {
    __m256i r;
    if (kBytes)
        asm volatile("vpaddw %2, %1, %0" : "=x"(r) : "x"(sum), "x"(x));
    else
        asm volatile("vpaddd %2, %1, %0" : "=x"(r) : "x"(sum), "x"(x));
    return r;
}

// Sums of products of 16 rows: pairs of 16 bits, or integers of 32.
struct Sum { __m256i a, b; };

// Words of four tokens, of four codes or two 16-bit integers, come in pairs: one of the first half of a group beside its fellow of the second.
constexpr size_t kPairBytes = 32;
template <bool kBytes>
constexpr size_t kHalfWords = kBytes ? kGroupQuads / 2 : kGroupQuads;
template <bool kBytes>
constexpr size_t place_of(size_t word) { return word % kHalfWords<kBytes> * kPairBytes + word / kHalfWords<kBytes> * (kPairBytes / 2); }

// Products of `kQuads` quads with M of four tokens' words, the first in its place; onto what `sums` begin with if kOnto.
template <bool kBytes, int M, size_t kQuads, bool kOnto>
__attribute__((always_inline)) inline void sum_quads(const uint8_t* quads, const uint8_t* words, Sum* sums) {
    constexpr size_t kLag = 2, kTemporary = kLag + 1, kSteps = kQuads * M;
    Sum product[kTemporary];
    Quad w = {};
#pragma GCC unroll 72
    for (size_t step = 0; step < kSteps + kLag; ++step) {
        if (step < kSteps) {
            const size_t quad = step / M;
            if (step % M == 0) w = {ordered_load(quads + quad * kQuadBytes), ordered_load(quads + quad * kQuadBytes + 32)};
            const __m256i x = ordered_broadcast(words + place_of<kBytes>(quad) + 4 * (step % M));
            product[step % kTemporary].a = ordered_products<kBytes>(w.a, x);
            product[step % kTemporary].b = ordered_products<kBytes>(w.b, x);
        }
        if (step < kLag) continue;
        const size_t done = step - kLag;
        if (done < M && !kOnto) {
            sums[done] = product[done % kTemporary];
        } else {
            Sum& sum = sums[done % M];
            sum = {ordered_sum<kBytes>(sum.a, product[done % kTemporary].a), ordered_sum<kBytes>(sum.b, product[done % kTemporary].b)};
        }
    }
}

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline

#endif
