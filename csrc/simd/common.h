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

// How a byte of a record holds an integer: whole, with a sign, or as one of its halves.
enum class Field { kNone, kByte, kSigned, kLow, kHigh };

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
