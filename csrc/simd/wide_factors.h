// What levels share whose products are added up in 32 bits at once, so that factors are integers of 32 bits.
#pragma once

namespace ridgeline {
namespace RIDGELINE_LEVEL {
namespace {

// Twins: two factors of each row, for the sums of two parts' inputs.
struct Twins { Factors first, second; };
template <Field kField>
inline Twins twins(const uint8_t* first, const uint8_t* second) { return {factors<kField>(first), factors<kField>(second)}; }
inline Ints widened(Pairs x, Factors by) { return x * by; }
inline Ints integers(const uint8_t* p) { return factors<Field::kSigned>(p); }

// Sums of the inputs of the parts of a span of 256.
template <int kParts>
struct Totals {
    int32_t each[8 * kParts];
    void gather(const int32_t* sums) {   // [16], of 16 inputs each
        for (size_t i = 0; i < 8 * kParts; ++i) each[i] = kParts == 2 ? sums[i] : sums[2 * i] + sums[2 * i + 1];
    }
    Ints onto(Ints sum, Twins by, size_t pair) const { return sum + by.first * ints(each[2 * pair]) + by.second * ints(each[2 * pair + 1]); }
};

}  // namespace
}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
