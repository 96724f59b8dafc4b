// Which tokens survive min-p, top-k and top-p. Selection never sorts: candidates above a first bound go into bins of equal width, and the
// bin that holds the last survivor into bins again, until its logits are equal.
//
// Weights and their sums are float64. They can differ from the reference's in the last bits, and with them the set of survivors where
// mass meets top-p within that rounding; all comparisons of logits are exact.
#include <float.h>
#include <math.h>

#include "sample/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kBins = 256;
constexpr double kDoubt = 0.25;          // error of a sum, in shares of one candidate of many, beyond which it will not decide
constexpr double kMargin = 1e-4;         // covers rounding where a bound only spares work

bool skipped(const BlockRow& row, size_t block, float value) { return row.maxima[block] < value || row.maxima[block] == -INFINITY; }

bool reach(const float* x, float least) {
    uint32_t any = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) any |= x[lane] >= least;
    return any != 0;
}

// Appends the entries of x [kBlock] that are at least `least` to list, which has room for a block more.
size_t append(const float* x, float least, float* list, size_t count) {
    for (size_t i = 0; i < kBlock; i += kLanes) {
        if (!reach(x + i, least)) continue;
        for (size_t lane = i; lane < i + kLanes; ++lane) {
            list[count] = x[lane];
            count += x[lane] >= least;
        }
    }
    return count;
}

struct Selected {
    float value;                         // of the last survivor
    size_t kept, of;                     // so many of the equals survive
    double spare;                        // weight of the survivors beyond what was needed
};

// The bins of x [kBlock], 0 for `highest`; monotone in x. Behind a list's end x may be anything.
void bins_of(const float* x, double highest, double width, int32_t* bins) {
    constexpr double kLast = kBins - 1;
    for (size_t i = 0; i < kBlock; ++i) {
        const double place = (highest - static_cast<double>(x[i])) * width;
        bins[i] = static_cast<int32_t>(place < kLast ? place : kLast);
    }
}

void fill_bins(const float* list, size_t count, const Scale* scale, double highest, double width, double* mass) {
    double weights[kBlock];
    int32_t bins[kBlock];
    for (size_t i = 0; i < kBlock; ++i) weights[i] = 1.0;
    for (size_t b = 0; b < kBins; ++b) mass[b] = 0.0;
    for (size_t start = 0; start < count; start += kBlock) {
        const size_t here = count - start < kBlock ? count - start : kBlock;
        if (scale != nullptr) weigh(list + start, *scale, weights);
        bins_of(list + start, highest, width, bins);
        for (size_t i = 0; i < here; ++i) mass[bins[i]] += weights[i];
    }
}

// What of the list is in one bin, moved to its beginning.
size_t keep_bin(float* list, size_t count, double highest, double width, int32_t bin) {
    int32_t bins[kBlock];
    size_t left = 0;
    for (size_t start = 0; start < count; start += kBlock) {
        const size_t here = count - start < kBlock ? count - start : kBlock;
        bins_of(list + start, highest, width, bins);
        for (size_t i = 0; i < here; ++i) {
            list[left] = list[start + i];
            left += bins[i] == bin;
        }
    }
    return left;
}

void range_of(const float* list, size_t count, float* most, float* least) {
    Vec high = all(list[0]), low = high;
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Vec v = load(list + i);
        high = larger(v, high);
        low = smaller(v, low);
    }
    const Vec v = load_first(list + i, count - i, list[0]);
    *most = largest_of(larger(v, high));
    *least = -largest_of(zero() - smaller(v, low));
}

// The shortest beginning of list [count], in descending order, whose weights reach `needed`; all of it where they do not. Without a scale
// every weight is 1. The list has kBlock entries more, which are read and do not count; it is left in disorder.
Selected select(float* list, size_t count, double needed, const Scale* scale) {
    for (;;) {
        float most, least;
        range_of(list, count, &most, &least);
        if (most == least) {
            double weights[kBlock] = {1.0};
            if (scale != nullptr) weigh(list, *scale, weights);
            const double wanted = ceil(needed / weights[0]);
            const size_t kept = wanted >= static_cast<double>(count) ? count : wanted > 1.0 ? static_cast<size_t>(wanted) : 1;
            return {most, kept, count, static_cast<double>(kept) * weights[0] - needed};
        }
        const double highest = most, width = kBins / (highest - static_cast<double>(least));
        double mass[kBins];
        fill_bins(list, count, scale, highest, width, mass);
        int32_t bin = 0;
        for (; bin < static_cast<int32_t>(kBins) - 1 && mass[bin] < needed; ++bin) needed -= mass[bin];
        count = keep_bin(list, count, highest, width, bin);
    }
}

// The id of equal number `nth` (from 1) of `value`.
int32_t id_of_equal(const BlockRow& row, float value, size_t nth) {
    for (size_t b = 0; b < row.count; ++b) {
        if (row.maxima[b] < value) continue;
        size_t equal = 0;
        for (size_t i = 0; i < kBlock; ++i) equal += row.blocks[b][i] == value;
        for (size_t i = 0; nth <= equal; ++i)
            if (row.blocks[b][i] == value && --nth == 0) return static_cast<int32_t>(b * kBlock + i);
        nth -= equal;
    }
    return INT32_MAX;
}

Cut cut_at(const BlockRow& row, Selected found, int32_t last_before) {
    return {found.value, found.kept == found.of ? last_before : id_of_equal(row, found.value, found.kept)};
}

}  // namespace

const float* survivors(const BlockRow& row, size_t block, Cut cut, float* memory) {
    const float* x = row.blocks[block];
    if (cut.value == -INFINITY) return x;
    const int32_t first = static_cast<int32_t>(block * kBlock);
    for (int32_t i = 0; i < static_cast<int32_t>(kBlock); ++i) {
        const bool kept = (x[i] > cut.value) | ((x[i] == cut.value) & (first + i <= cut.last));
        memory[i] = kept ? x[i] : -INFINITY;
    }
    return memory;
}

// Bisects the floats in their order as integers: exact, whatever rounding does to the scaled logits.
float least_logit(Scale scale, double bound) {
    const auto float_at = [](int64_t rank) {
        const uint32_t bits = static_cast<uint32_t>(rank >= 0 ? rank : INT32_MIN - rank);
        return __builtin_bit_cast(float, bits);
    };
    int64_t below = static_cast<int64_t>(INT32_MIN) - __builtin_bit_cast(int32_t, -INFINITY);
    int64_t found = __builtin_bit_cast(int32_t, static_cast<float>(scale.highest));
    if (found < 0) found = INT32_MIN - found;
    while (found - below > 1) {
        const int64_t middle = below + (found - below) / 2;
        (scale(float_at(middle)) >= bound ? found : below) = middle;
    }
    return float_at(found);
}

Cut top_k(const BlockRow& row, size_t k) {
    // At least k logits reach the k-th largest maximum.
    float least = -FLT_MAX;
    if (k <= row.count) {
        size_t finite = 0;
        for (size_t b = 0; b < row.count; ++b) {
            row.list[finite] = row.maxima[b];
            finite += row.maxima[b] > -INFINITY;
        }
        if (k <= finite) least = select(row.list, finite, static_cast<double>(k), nullptr).value;
    }
    size_t count = 0;
    for (size_t b = 0; b < row.count; ++b)
        if (!skipped(row, b, least)) count = append(row.blocks[b], least, row.list, count);
    if (count < k) return {-INFINITY, id_of_equal(row, -INFINITY, k - count)};
    return cut_at(row, select(row.list, count, static_cast<double>(k), nullptr), INT32_MAX);
}

// What a sum in float32 decides, whatever its error, needs none in float64.
Cut top_p(const BlockRow& row, Cut cut, Scale scale, double p) {
    float memory[kBlock];
    double error, total = mass_nearly(row, cut, scale, &error);
    for (;;) {
        // Entries below an equal share of the mass that may be left out are not needed: all of them together are less than that mass.
        const double share = log((1.0 - p) * total / static_cast<double>(row.vocab)) - kMargin;
        const float enough = least_logit(scale, share < 0.0 ? share : 0.0);
        const float least = enough > cut.value ? enough : cut.value;
        size_t count = 0;
        for (size_t b = 0; b < row.count; ++b)
            if (!skipped(row, b, least)) count = append(survivors(row, b, cut, memory), least, row.list, count);
        if (error * static_cast<double>(count) > kDoubt) total = mass_of(row, cut, scale), error = 0.0;
        const Selected found = select(row.list, count, p * total * (1.0 - error), &scale);
        if (error == 0.0 || found.spare > 2.0 * p * total * error) return cut_at(row, found, found.value == cut.value ? cut.last : INT32_MAX);
        total = mass_of(row, cut, scale), error = 0.0;
    }
}

void ids_of(const BlockRow& row, Cut cut, int32_t* ids) {
    size_t count = 0;
    for (size_t b = 0; b < row.count; ++b) {
        if (row.maxima[b] < cut.value) continue;
        const int32_t first = static_cast<int32_t>(b * kBlock);
        for (int32_t i = 0; i < static_cast<int32_t>(kBlock); ++i) {
            const float x = row.blocks[b][i];
            if (x > cut.value || (x == cut.value && first + i <= cut.last)) ids[count++] = first + i;
        }
    }
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
