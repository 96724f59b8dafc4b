// The loops of a roofline, for one ISA level. An empty `asm` makes a value look changed, so that no product is hoisted or dropped.
#include "runtime/roofline.h"

#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

void clock(size_t rounds) {
    constexpr size_t kChain = 64;
    size_t sum = 0, step = 1;
    for (size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 64
        for (size_t i = 0; i < kChain; ++i) {
            sum += step;
            asm volatile("" : "+r"(sum), "+r"(step));
        }
}

// A core reads more from several places at once than from one.
void read(const uint8_t* data, size_t bytes, size_t rounds) {
    constexpr size_t kLoads = kReadStep / kQuadBytes, kStreams = 4;
    const size_t each = bytes / kStreams / kReadStep * kReadStep;
    Quad seen[kLoads] = {};
    const auto take = [&](const uint8_t* p) {
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kLoads; ++i) seen[i] = or_(seen[i], load_quad(p + i * kQuadBytes));
    };
    for (size_t round = 0; round < rounds; ++round) {
        for (size_t at = 0; at < each; at += kReadStep)
            RIDGELINE_UNROLL
            for (size_t stream = 0; stream < kStreams; ++stream) take(data + stream * each + at);
        for (size_t at = kStreams * each; at < bytes; at += kReadStep) take(data + at);
    }
    for (size_t i = 0; i < kLoads; ++i) touch(seen[i]);
}

void f32(size_t rounds) {
    Vec sum[kSums], x = all(1.0001f), y = all(0.9999f);
    RIDGELINE_UNROLL
    for (size_t i = 0; i < kSums; ++i) sum[i] = all(static_cast<float>(i));
    touch(x), touch(y);
    for (size_t round = 0; round < rounds; ++round)
        RIDGELINE_UNROLL
        for (size_t i = 0; i < kSums; ++i) {
            sum[i] = fma(sum[i], x, y);
            touch(sum[i]);
        }
}
constexpr Loop kF32 = {f32, kSums * kLanes * 2};

const uint8_t kThrees[kQuadBytes] = {3}, kTwos[kQuadBytes] = {2};

// Codes of at most `kBits` bits.
template <int kBits>
void integers(size_t rounds) {
    Quad codes = load_quad(kThrees), x = load_quad(kTwos);
    Ints sum[kIntSums];
    RIDGELINE_UNROLL
    for (Ints& each : sum) each = ints(0);
    touch(codes), touch(x);
    for (size_t round = 0; round < rounds; ++round)
        RIDGELINE_UNROLL
        for (Ints& each : sum) {
            each = dots<kBits>(each, codes, x);
            touch(each);
        }
}
template <int kBits>
constexpr Loop kIntegers = {integers<kBits>, kIntSums * kDots<kBits> * kQuadBytes * 2};

}  // namespace

extern const RooflineKernels kRoofline;
const RooflineKernels kRoofline = {read, {clock, 64}, kF32, {kBF16Dots, kBF16Sums * kLanes * 4}, kIntegers<4>, kIntegers<5>, kIntegers<6>, kIntegers<8>};

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
