// Gumbel-max with noise that is a function of (seed, choice, position, token id): Philox4x32-10 of Salmon et al. 2011, in integers. All
// survivors that can still win get their random word, and only those whose word is large enough two logarithms.
#include <math.h>
#include <string.h>

#include "sample/parts.h"
#include "simd/simd.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// Words of several generator blocks, one in each 64-bit lane; the high half of a lane is whatever it is.
constexpr size_t kQuads = sizeof(Lanes) / sizeof(uint64_t);
constexpr int kRounds = 10;
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

// What all blocks of a row's generator have in common.
struct Key {
    explicit Key(const Place& place) : position(all_lanes(place.position())), choice(all_lanes(place.row.choice)) {
        uint32_t words[2] = {static_cast<uint32_t>(place.row.seed), static_cast<uint32_t>(place.row.seed >> 32)};
        for (int round = 0; round < kRounds; ++round) {
            low[round] = all_lanes(words[0]), high[round] = all_lanes(words[1]);
            words[0] += 0x9E3779B9u, words[1] += 0xBB67AE85u;
        }
    }

    Lanes position, choice, low[kRounds], high[kRounds];
};

// Two registers of blocks at a time, so that one's products are computed while the other waits for its own.
void draw(const Key& key, size_t first, Words* words) {
    const Lanes to_c = all_lanes(0xD2511F53u), to_a = all_lanes(0xCD9E8D57u);
    for (size_t quad = 0; quad < kPart / 4; quad += 2 * kQuads) {
        Lanes a[2], b[2], c[2], d[2];
        for (int i = 0; i < 2; ++i) {
            a[i] = all_lanes(first / 4 + quad + i * kQuads) + kCount;
            b[i] = key.position, c[i] = key.choice, d[i] = all_lanes(0);
        }
        for (int round = 0; round < kRounds; ++round) {
            for (int i = 0; i < 2; ++i) {
                const Lanes from_a = product(a[i], to_c), from_c = product(c[i], to_a);
                a[i] = (from_c >> 32) ^ (b[i] ^ key.low[round]);
                b[i] = from_c;
                c[i] = (from_a >> 32) ^ (d[i] ^ key.high[round]);
                d[i] = from_a;
            }
        }
        for (int i = 0; i < 2; ++i) {
            const Lanes ab = (a[i] & UINT32_MAX) | (b[i] << 32), cd = (c[i] & UINT32_MAX) | (d[i] << 32);
            memcpy(words->pairs[0] + 2 * (quad + i * kQuads), &ab, sizeof ab);
            memcpy(words->pairs[1] + 2 * (quad + i * kQuads), &cd, sizeof cd);
        }
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

bool anyone(const float* kept, float able) {
    uint32_t any = 0;
    for (size_t i = 0; i < kPart; ++i) any |= kept[i] >= able;
    return any != 0;
}

}  // namespace

int32_t gumbel_max(const BlockRow& row, Cut cut, Scale scale, int32_t best, const Place& place) {
    const double most = gumbel(kWords - 1.0);
    const Key key(place);
    Words words;
    const size_t likeliest = static_cast<size_t>(best);
    draw(key, likeliest / kPart * kPart, &words);
    Winner winner = {gumbel(words.of(likeliest % kPart)), best};
    const float able = least_logit(scale, winner.score - most - kRounding);  // what lies below cannot win
    float memory[kBlock];
    for (size_t b = 0; b < row.count; ++b) {
        const double missing = winner.score - scale(row.maxima[b]);
        if (row.maxima[b] < cut.value || row.maxima[b] < able || missing > most + kRounding) continue;
        const uint32_t floor = least_word(missing);
        const float* kept = survivors(row, b, cut, memory);
        for (size_t part = 0; part < kBlock; part += kPart) {
            if (!anyone(kept + part, able)) continue;
            draw(key, b * kBlock + part, &words);
            if (words.reach(floor)) meet(kept + part, b * kBlock + part, words, floor, scale, &winner);
        }
    }
    return winner.id;
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
