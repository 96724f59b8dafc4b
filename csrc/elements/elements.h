// What a step computes for one token at a time, as one ISA level offers it. Memory belongs to the caller.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ridgeline {

enum Activation : int { kSilu, kGeluTanh };

// Every function handles one token: x, y and out are its rows, `width` floats long. out may be x.
struct ElementKernels {
    // x [k] -> codes [k], scales [k / 32], sums of 16 codes [k / 16]. `group` neighbours, a multiple of 32 that k is one of, share a scale. A
    // group with a value that is not finite gets scale NaN and codes 0.
    void (*quantise)(const float* x, size_t k, size_t group, int8_t* codes, float* scales, int32_t* sums);

    // Each piece of `piece` floats over its root mean square, times weight [piece].
    void (*rms_norm)(const float* x, const float* weight, size_t width, size_t piece, float eps, float* out);

    // x less its mean, over its standard deviation, times weight [width] plus bias [width].
    void (*layer_norm)(const float* x, const float* weight, const float* bias, size_t width, float eps, float* out);

    void (*add)(const float* x, const float* y, size_t width, float* out);
    // out [i] = x[order[i]]; out is not x.
    void (*reorder)(const float* x, const int32_t* order, size_t width, float* out);

    void (*scale)(const float* x, float factor, size_t width, float* out);

    // cap * tanh(x / cap)
    void (*softcap)(const float* x, float cap, size_t width, float* out);

    // activation(x), times y unless y is null.
    void (*activate)(int activation, const float* x, const float* y, size_t width, float* out);

    // cos and sin of position * frequencies [half], times `factor`: turn [2, half].
    void (*rotation)(int32_t position, const double* frequencies, size_t half, float factor, float* turn);

    // Of every head of `head_dim` floats, i turns with i + half by turn [2, half]; what lies behind 2 * half passes.
    void (*rope)(const float* x, const float* turn, size_t width, size_t head_dim, size_t half, float* out);
};

}  // namespace ridgeline
