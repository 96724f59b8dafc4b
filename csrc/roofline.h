// What a machine can do at most: loops that do nothing but read, or nothing but multiply and add. Memory belongs to the caller.
//
// A kernel's speed is told as a share of these. The loops are the fastest that we know for each ISA level, on data that cannot be slow.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

constexpr size_t kReadStep = 256;        // bytes that one turn of the reading loop takes

// A loop over registers. `operations` of one round, a multiply-add counted as two; 0 where the level has no such instructions.
struct Loop {
    void (*run)(size_t rounds);
    size_t operations;
};

enum class Ceiling : int { kRead, kClock, kF32, kBF16, kInt4, kInt8, kCeilings };

struct RooflineKernels {
    // Reads `bytes` bytes, a multiple of kReadStep, in ascending order, `rounds` times.
    void (*read)(const uint8_t* data, size_t bytes, size_t rounds);

    Loop clock;                          // additions that wait for each other: one a cycle
    Loop f32;                            // multiply-adds
    Loop bf16;                           // dot products of pairs into fp32
    Loop int4;                           // 8-bit activations with codes of at most 4 bits, sums of 32 inputs in 16 bits where that is faster
    Loop int8;                           // 8-bit activations with 8-bit codes
};

// When the work of one thread began and ended, in seconds of the steady clock, and how much it was: bytes, or operations.
struct Span {
    double began, ended, work;
};

// Waits until `threads` threads have come to `gate` (zero at first, the caller's), then runs a ceiling's loop. `data` and `bytes` for kRead.
// A thread that has waited for a second goes ahead alone.
Span measure(const RooflineKernels& kernels, Ceiling ceiling, const uint8_t* data, size_t bytes, size_t rounds, uint32_t* gate, uint32_t threads);

// The same for `rounds` barriers in a row, each a counter that all threads raise and watch. The work is the barriers.
Span measure_barriers(size_t rounds, uint32_t* gate, uint32_t threads);

}  // namespace ridgeline
