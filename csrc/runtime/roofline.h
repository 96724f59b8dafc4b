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

enum class Ceiling : int { kRead, kClock, kF32, kBF16, kInt4, kInt5, kInt6, kInt8 };

struct RooflineKernels {
    // Reads `bytes` bytes, a multiple of kReadStep, `rounds` times.
    void (*read)(const uint8_t* data, size_t bytes, size_t rounds);

    Loop clock;                          // additions that wait for each other: one per cycle
    Loop f32;                            // multiply-adds
    Loop bf16;                           // dot products of pairs into fp32
    Loop int4, int5, int6, int8;         // 8-bit activations with codes of at most so many bits: fewer bits, rarer widening
};

class Team;

// What all threads did together: bytes, operations. Seconds from the first one's begin to the last one's end; for loops over registers
// those of the processor, on the thread that needed most: who shares its processor with others computes no slower.
struct Effort {
    double seconds, work;
};

// Runs a ceiling's loop on every thread of the team, which begin together. For kRead each reads its own `bytes / threads` of `data`, in
// whole kReadSteps. No work where this level or machine has no such instructions.
Effort measure(const RooflineKernels& kernels, Team& team, Ceiling ceiling, const uint8_t* data, size_t bytes, size_t rounds);

// `count` phases of a step, each of one empty chunk a thread: what it costs that threads wait for each other. The work is the phases.
Effort measure_phases(Team& team, size_t count);

// `count` steps of nothing, one after the other, each entered by all threads: what it costs to set the team to work. The work is the steps.
Effort measure_entries(Team& team, size_t count);

}  // namespace ridgeline
