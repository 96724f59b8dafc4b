// Gumbel-max with noise that is a function of (seed, choice, position, token id): Philox4x32-10 of Salmon et al. 2011, in integers. All
// survivors that can still win get their random word, and only those whose word is large enough two logarithms.
#include <math.h>
#include <string.h>

#include "sample_parts.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// Words of several generator blocks, one in each 64-bit lane; the high half of a lane is whatever it is.
#if defined(__AVX512F__)
typedef uint64_t Lanes __attribute__((vector_size(64)));
inline Lanes product(Lanes a, Lanes b) { return (Lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
const Lanes kCount = {0, 1, 2, 3, 4, 5, 6, 7};
#elif defined(__AVX2__)
typedef uint64_t Lanes __attribute__((vector_size(32)));
inline Lanes product(Lanes a, Lanes b) { return (Lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
const Lanes kCount = {0, 1, 2, 3};
#else
typedef uint64_t Lanes;
inline Lanes product(Lanes a, Lanes b) { return (a & UINT32_MAX) * (b & UINT32_MAX); }
const Lanes kCount = 0;
#endif

constexpr size_t kQuads = sizeof(Lanes) / sizeof(uint64_t);
constexpr size_t kPart = 64;             // ids that get their words together
constexpr double kWords = 4294967296.0;
constexpr double kRounding = 1e-9;       // covers the rounding of sums of float64 where a bound decides
constexpr double kSlack = 2.0;           // words below the bound that are looked at all the same, for the rounding of logarithms

inline Lanes all_lanes(uint64_t x) { return (kCount ^ kCount) + x; }

// The random words of ids first … first + 63, of which `first` is a multiple of 4. A generator block has the counter
// (id / 4, position, choice, 0), and its words belong to four neighbouring ids.
struct Words {
    uint32_t pairs[2][kPart / 2];        // first and second two words of each block

    uint32_t of(size_t i) const { return pairs[i / 2 % 2][i / 4 * 2 + i % 2]; }

    bool reach(uint32_t floor) const {
        uint32_t any = 0;
        for (size_t i = 0; i < kPart / 2; ++i) any |= (pairs[0][i] >= floor) | (pairs[1][i] >= floor);
        return any != 0;
    }
};

void draw(const SampleRow& key, size_t first, Words* words) {
    for (size_t quad = 0; quad < kPart / 4; quad += kQuads) {
        Lanes a = all_lanes(first / 4 + quad) + kCount, b = all_lanes(key.position), c = all_lanes(key.choice), d = all_lanes(0);
        uint32_t low = static_cast<uint32_t>(key.seed), high = static_cast<uint32_t>(key.seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const Lanes from_a = product(a, all_lanes(0xD2511F53u)), from_c = product(c, all_lanes(0xCD9E8D57u));
            a = (from_c >> 32) ^ b ^ all_lanes(low);
            b = from_c;
            c = (from_a >> 32) ^ d ^ all_lanes(high);
            d = from_a;
            low += 0x9E3779B9u;
            high += 0xBB67AE85u;
        }
        const Lanes ab = (a & UINT32_MAX) | (b << 32), cd = (c & UINT32_MAX) | (d << 32);
        memcpy(words->pairs[0] + 2 * quad, &ab, sizeof ab);
        memcpy(words->pairs[1] + 2 * quad, &cd, sizeof cd);
    }
}

double gumbel(double word) { return -log(-log((word + 0.5) / kWords)); }

// No word below it has noise of at least `noise`.
uint32_t least_word(double noise) {
    const double word = exp(-exp(-noise)) * kWords - 0.5 - kSlack;
    return word > 0.0 ? static_cast<uint32_t>(word) : 0;
}

struct Winner {
    double score;
    int32_t id;
};

void meet(const float* kept, size_t first, const Words& words, uint32_t floor, Scale scale, Winner* winner) {
    for (size_t i = 0; i < kPart; ++i) {
        const uint32_t word = words.of(i);
        if (word < floor || kept[i] == -INFINITY) continue;
        const double score = scale(kept[i]) + gumbel(word);
        const int32_t id = static_cast<int32_t>(first + i);
        if (score > winner->score || (score == winner->score && id < winner->id)) *winner = {score, id};
    }
}

bool anyone(const float* kept) {
    bool any = false;
    for (size_t i = 0; i < kPart; ++i) any |= kept[i] > -INFINITY;
    return any;
}

}  // namespace

int32_t gumbel_max(const BlockRow& row, Cut cut, Scale scale, int32_t best, const SampleRow& asked) {
    const double most = gumbel(kWords - 1.0);
    Words words;
    const size_t place = static_cast<size_t>(best);
    draw(asked, place / kPart * kPart, &words);
    Winner winner = {gumbel(words.of(place % kPart)), best};
    const float able = least_logit(scale, winner.score - most - kRounding);
    if (able > cut.value) cut = {able, INT32_MAX};
    float kept[kBlock];
    for (size_t b = 0; b < row.count; ++b) {
        if (row.maxima[b] < cut.value || row.maxima[b] == -INFINITY) continue;
        const double missing = winner.score - scale(row.maxima[b]);
        if (missing > most + kRounding) continue;
        const uint32_t floor = least_word(missing);
        survivors(row, b, cut, kept);
        for (size_t part = 0; part < kBlock; part += kPart) {
            if (!anyone(kept + part)) continue;
            draw(asked, b * kBlock + part, &words);
            if (words.reach(floor)) meet(kept + part, b * kBlock + part, words, floor, scale, &winner);
        }
    }
    return winner.id;
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
