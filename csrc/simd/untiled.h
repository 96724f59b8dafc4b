// What levels share that have no instructions for tiles and for sums of bf16: those products are left to vectors.
#pragma once

#include "simd/common.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

constexpr size_t kBF16Sums = 0;
constexpr void (*kBF16Dots)(size_t) = nullptr;
constexpr bool kTileProducts = false;
constexpr void (*kTilesBegin)() = nullptr;
constexpr void (*kTilesEnd)() = nullptr;
constexpr void (*kStoreHalves)(const float*, size_t, uint8_t*) = nullptr;
constexpr void (*kTileSums[2])(const TilePair&, float*, size_t) = {nullptr, nullptr};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
