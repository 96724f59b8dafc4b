// What every level's vocabulary begins with: sizes that all levels share, and how bytes hold integers.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kLanes = 16;            // floats of a vector
constexpr size_t kGroupQuads = 8;        // quads of a group of 32 inputs
constexpr size_t kQuadBytes = 64;        // a quad: four consecutive inputs of sixteen rows, lane r of 32 bits holds row r

inline uint32_t word(const void* p) { uint32_t w; memcpy(&w, p, 4); return w; }
inline void set_word(void* p, uint32_t w) { memcpy(p, &w, 4); }

// Products of tiles: 16 tokens, or 16 outputs, by 32 inputs in two halves of bf16 each, high and low. A record has both halves of 32 inputs.
constexpr size_t kTileRows = 16, kTileInputs = 32, kTileRecord = 2048;

// What two tiles of tokens and two of outputs are multiplied from; the second of tokens lies `apart` bytes behind the first.
struct TilePair {
    const uint8_t *x, *w[2];
    size_t apart, groups;                // records of a tile
    const uint8_t* ahead;                // to be fetched, so many bytes for each record
    size_t fetched;
};

// How a byte of a record holds an integer: whole, with a sign, or as one of its halves.
enum class Field { kNone, kByte, kSigned, kLow, kHigh };

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
