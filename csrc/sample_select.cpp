// Which tokens survive min-p, top-k and top-p, and the sum of exponentials. Selection never sorts: candidates above a first bound go into
// bins of equal width, and the bin that holds the last survivor into bins again, until its logits are equal.
//
// Weights and their sums are float64. They can differ from the reference's in the last bits, and with them the set of survivors where
// mass meets top-p within that rounding; all comparisons of logits are exact.
#include <float.h>
#include <math.h>
#include <string.h>

#include "sample_parts.h"
#include "simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

constexpr size_t kBins = 256;
constexpr size_t kSums = 8;              // partial sums of a block: the same at every level
constexpr double kRounding = 1e-9;       // covers the rounding of float64 where a bound only spares work

// e^x for x ≤ 0 within 2 units in the last place: 2^n times Taylor's polynomial of what is left; 0 below -708. Written without branches and
// without FMA, so that it is vectorised and gives the same bits at every level.
inline double exponential_of(double x) {
    constexpr double kShift = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
    const double shifted = x * 1.4426950408889634 + kShift, n = shifted - kShift;
    const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    const double r2 = r * r, r4 = r2 * r2;
    const double p0 = (1.0 + r) + r2 * (1.0 / 2 + r * (1.0 / 6));
    const double p4 = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
    const double p8 = (1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800 + r * (1.0 / 39916800));
    const double p12 = 1.0 / 479001600 + r * (1.0 / 6227020800);
    const double power = __builtin_bit_cast(double, (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52);
    const double y = (p0 + r4 * (p4 + r4 * (p8 + r4 * p12))) * power;
    return x < -708.0 ? 0.0 : y;
}

// Weights [kBlock] of logits [kBlock].
void weigh(const float* x, Scale scale, double* weights) {
    for (size_t i = 0; i < kBlock; ++i) weights[i] = exponential_of(scale(x[i]));
}

double sum_block(const double* x) {
    double sums[kSums] = {};
    for (size_t i = 0; i < kBlock; i += kSums)
        for (size_t s = 0; s < kSums; ++s) sums[s] += x[i + s];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

bool skipped(const BlockRow& row, size_t block, float value) { return row.maxima[block] < value || row.maxima[block] == -INFINITY; }

// Appends the finite entries of x [kBlock] that are at least `least` to list; the list has room for a block more.
size_t append(const float* x, float least, float* list, size_t count) {
    for (size_t i = 0; i < kBlock; ++i) {
        list[count] = x[i];
        count += x[i] >= least;
    }
    return count;
}

struct Selected {
    float value;                         // of the last survivor
    size_t kept, of;                     // so many of the equals survive
};

// Bins from the largest to the least; monotone in x.
inline size_t bin_of(float x, double highest, double width) {
    const size_t bin = static_cast<size_t>((highest - static_cast<double>(x)) * width);
    return bin < kBins ? bin : kBins - 1;
}

void fill_bins(float* list, size_t count, const Scale* scale, double highest, double width, double* mass) {
    double weights[kBlock];
    for (size_t i = 0; i < kBlock; ++i) weights[i] = 1.0;
    for (size_t b = 0; b < kBins; ++b) mass[b] = 0.0;
    for (size_t start = 0; start < count; start += kBlock) {
        const size_t here = count - start < kBlock ? count - start : kBlock;
        if (scale != nullptr) weigh(list + start, *scale, weights);
        for (size_t i = 0; i < here; ++i) mass[bin_of(list[start + i], highest, width)] += weights[i];
    }
}

// The shortest beginning of list [count], in descending order, whose weights reach `needed`; all of it where they do not. Without a scale
// every weight is 1. The list has kBlock entries more, which are read and do not count; it is left in disorder.
Selected select(float* list, size_t count, double needed, const Scale* scale) {
    for (;;) {
        float most = list[0], least = list[0];
        for (size_t i = 1; i < count; ++i) {
            most = list[i] > most ? list[i] : most;
            least = list[i] < least ? list[i] : least;
        }
        if (most == least) {
            const double weight = scale == nullptr ? 1.0 : exponential_of((*scale)(most));
            const double kept = ceil(needed / weight);
            return {most, kept >= static_cast<double>(count) ? count : kept > 1.0 ? static_cast<size_t>(kept) : 1, count};
        }
        const double highest = most, width = kBins / (highest - static_cast<double>(least));
        double mass[kBins];
        fill_bins(list, count, scale, highest, width, mass);
        size_t bin = 0;
        for (; bin < kBins - 1 && mass[bin] < needed; ++bin) needed -= mass[bin];
        size_t left = 0;
        for (size_t i = 0; i < count; ++i) {
            const float x = list[i];
            list[left] = x;
            left += bin_of(x, highest, width) == bin;
        }
        count = left;
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

void survivors(const BlockRow& row, size_t block, Cut cut, float* out) {
    const float* x = row.blocks[block];
    const int32_t first = static_cast<int32_t>(block * kBlock);
    for (int32_t i = 0; i < static_cast<int32_t>(kBlock); ++i) {
        const bool kept = (x[i] > cut.value) | ((x[i] == cut.value) & (first + i <= cut.last));
        out[i] = kept ? x[i] : -INFINITY;
    }
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

Cut top_p(const BlockRow& row, Cut cut, Scale scale, double p) {
    float kept[kBlock];
    double weights[kBlock], total = 0.0;
    for (size_t b = 0; b < row.count; ++b) {
        if (skipped(row, b, cut.value)) continue;
        survivors(row, b, cut, kept);
        weigh(kept, scale, weights);
        total += sum_block(weights);
    }
    // Entries below an equal share of the mass that may be left out are not needed: all of them together are less than that mass.
    const double share = log((1.0 - p) * total / static_cast<double>(row.vocab)) - kRounding;
    const float enough = least_logit(scale, share < 0.0 ? share : 0.0);
    const float least = enough > cut.value ? enough : cut.value;
    size_t count = 0;
    for (size_t b = 0; b < row.count; ++b) {
        if (skipped(row, b, least)) continue;
        survivors(row, b, cut, kept);
        count = append(kept, least, row.list, count);
    }
    const Selected found = select(row.list, count, p * total, &scale);
    return cut_at(row, found, found.value == cut.value ? cut.last : INT32_MAX);
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

double log_sum_exp(const BlockRow& row, float highest) {
    const Vec shift = all(highest);
    double total = 0.0, wide[kBlock];
    float powers[kBlock];
    for (size_t b = 0; b < row.count; ++b) {
        if (skipped(row, b, -INFINITY)) continue;
        for (size_t i = 0; i < kBlock; i += kLanes) store(powers + i, exponential(load(row.blocks[b] + i) - shift));
        for (size_t i = 0; i < kBlock; ++i) wide[i] = powers[i];
        total += sum_block(wide);
    }
    return log(total) + static_cast<double>(highest);
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
