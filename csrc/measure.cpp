// Runs the loops of a roofline on several threads at once and takes the time. Threads belong to the caller.
#include <sched.h>

#include <atomic>
#include <chrono>

#include "roofline.h"

namespace ridgeline {

namespace {

constexpr double kPatience = 1.0;        // seconds that a thread waits for the others
constexpr int kSpins = 4096;             // looks at a counter before the processor is given away

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Until `counter` has reached `goal`. False after kPatience.
bool reached(const std::atomic<uint32_t>& counter, uint32_t goal) {
    const double began = now();
    for (;;) {
        for (int spin = 0; spin < kSpins; ++spin)
            if (counter.load(std::memory_order_acquire) >= goal) return true;
        if (now() - began > kPatience) return false;
        sched_yield();
    }
}

bool meet(uint32_t* gate, uint32_t goal) {
    auto& counter = *reinterpret_cast<std::atomic<uint32_t>*>(gate);
    counter.fetch_add(1, std::memory_order_acq_rel);
    return reached(counter, goal);
}

const Loop& loop_of(const RooflineKernels& kernels, Ceiling ceiling) {
    switch (ceiling) {
        case Ceiling::kF32: return kernels.f32;
        case Ceiling::kBF16: return kernels.bf16;
        case Ceiling::kInt4: return kernels.int4;
        case Ceiling::kInt8: return kernels.int8;
        default: return kernels.clock;
    }
}

}  // namespace

Span measure(const RooflineKernels& kernels, Ceiling ceiling, const uint8_t* data, size_t bytes, size_t rounds, uint32_t* gate, uint32_t threads) {
    const bool reads = ceiling == Ceiling::kRead;
    const Loop& loop = loop_of(kernels, ceiling);
    if (!reads && loop.operations == 0) return {0.0, 0.0, 0.0};
    meet(gate, threads);
    const double began = now();
    if (reads)
        kernels.read(data, bytes, rounds);
    else
        loop.run(rounds);
    return {began, now(), static_cast<double>(rounds) * static_cast<double>(reads ? bytes : loop.operations)};
}

Span measure_barriers(size_t rounds, uint32_t* gate, uint32_t threads) {
    meet(gate, threads);
    const double began = now();
    size_t done = 0;
    while (done < rounds && meet(gate, static_cast<uint32_t>(done + 2) * threads)) ++done;
    return {began, now(), static_cast<double>(done)};
}

}  // namespace ridgeline
