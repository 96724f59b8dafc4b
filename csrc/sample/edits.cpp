// What changes a row's logits before temperature, as compute/decoding/edits.py says: a feature is two functions and a line of the table at
// the end. Ids before a position are the row's history, then the drafts that its samples have met.
#include <math.h>
#include <string.h>

#include "sample/parts.h"

namespace ridgeline {
namespace RIDGELINE_LEVEL {

namespace {

// A block that may be written.
float* own(BlockRow& row, size_t block) {
    float* copy = row.copies + block * kBlock;
    if (row.blocks[block] != copy) {
        memcpy(copy, row.blocks[block], kBlock * sizeof(float));
        row.blocks[block] = copy;
    }
    return copy;
}

float get(const BlockRow& row, int32_t id) {
    const size_t place = static_cast<size_t>(id);
    return row.blocks[place / kBlock][place % kBlock];
}

void set(BlockRow& row, int32_t id, float value) {
    const size_t place = static_cast<size_t>(id);
    own(row, place / kBlock)[place % kBlock] = value;
}

void look_again(BlockRow& row, int32_t id) {
    const size_t block = static_cast<size_t>(id) / kBlock;
    row.maxima[block] = largest(row.blocks[block], kBlock);
}

bool inside(const BlockRow& row, int32_t id) { return static_cast<uint32_t>(id) < row.vocab; }

bool inside(const BlockRow& row, const int32_t* ids, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
        if (!inside(row, ids[i])) return false;
    return true;
}

// Takes ids [count] out, unless nothing would be left; one may come twice.
bool ban(BlockRow& row, const int32_t* ids, uint64_t count) {
    if (!inside(row, ids, count)) return false;
    size_t taken = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const float value = get(row, ids[i]);
        if (value == -INFINITY) continue;
        row.ids[taken] = ids[i], row.list[taken++] = value;
        set(row, ids[i], -INFINITY);
    }
    for (size_t i = 0; i < taken; ++i) look_again(row, row.ids[i]);
    for (size_t b = 0; b < row.count; ++b)
        if (row.maxima[b] != -INFINITY) return true;
    for (size_t i = 0; i < taken; ++i) set(row, row.ids[i], row.list[i]);
    for (size_t i = 0; i < taken; ++i) look_again(row, row.ids[i]);
    return true;
}

// ── a grammar ───────────────────────────────────────────────────────────────────────────────────────────────────────

bool is_masked(const Place& place) { return place.row.masks.count > 0; }

bool follow_grammar(BlockRow& row, const Place& place) {
    constexpr size_t kWords = kBlock / 32;
    if (place.row.masks.count < row.count * kWords) return false;
    const uint32_t* words = place.row.masks.items + place.known * place.row.masks.count;
    for (size_t b = 0; b < row.count; ++b, words += kWords) {
        if (row.maxima[b] == -INFINITY) continue;  // what is there is not written
        uint32_t some = 0, every = ~0u;
        for (size_t i = 0; i < kWords; ++i) some |= words[i], every &= words[i];
        if (every == ~0u) continue;
        if (some == 0) {
            row.blocks[b] = row.nothing;
            row.maxima[b] = -INFINITY;
            continue;
        }
        const float* logits = row.blocks[b];
        float* copy = row.copies + b * kBlock;
        for (size_t w = 0; w < kWords; ++w) {
            const uint32_t word = words[w];
            for (size_t i = 32 * w; i < 32 * (w + 1); ++i) copy[i] = word >> i % 32 & 1 ? logits[i] : -INFINITY;
        }
        row.blocks[b] = copy;
        row.maxima[b] = largest(copy, kBlock);
    }
    return true;
}

// ── allowed ids ─────────────────────────────────────────────────────────────────────────────────────────────────────

bool allows(const Place& place) { return place.row.allowed_ids.items != nullptr; }

bool allow(BlockRow& row, const Place& place) {
    const int32_t *next = place.row.allowed_ids.items, *end = next + place.row.allowed_ids.count;
    if (!inside(row, next, place.row.allowed_ids.count)) return false;
    for (const int32_t* each = next; each + 1 < end; ++each)
        if (each[0] >= each[1]) return false;
    for (size_t b = 0; b < row.count; ++b) {
        const int32_t* first = next;
        while (next < end && static_cast<size_t>(*next) < (b + 1) * kBlock) ++next;
        if (first == next) {
            row.blocks[b] = row.nothing;
            row.maxima[b] = -INFINITY;
            continue;
        }
        float kept[kBlock];
        memcpy(kept, row.nothing, sizeof kept);
        for (; first < next; ++first) kept[static_cast<size_t>(*first) % kBlock] = get(row, *first);
        memcpy(own(row, b), kept, sizeof kept);
        row.maxima[b] = largest(kept, kBlock);
    }
    return true;
}

// ── bad words ───────────────────────────────────────────────────────────────────────────────────────────────────────

// The id `back` places before the next one, from 1.
int32_t before(const Place& place, uint64_t back) {
    return back <= place.known ? place.drafts[place.known - back] : place.row.ids.items[place.row.ids.count + place.known - back];
}

// The next id would complete a word [length].
bool completes(const Place& place, const int32_t* word, uint64_t length) {
    if (length - 1 > place.row.ids.count + place.known) return false;
    for (uint64_t back = 1; back < length; ++back)
        if (before(place, back) != word[length - 1 - back]) return false;
    return true;
}

bool contains(const int32_t* ids, size_t count, int32_t id) {
    for (size_t i = 0; i < count; ++i)
        if (ids[i] == id) return true;
    return false;
}

bool has_bad_words(const Place& place) { return place.row.bad_words.count > 0; }

bool ban_bad_words(BlockRow& row, const Place& place) {
    const int32_t *word = place.row.bad_words.items, *end = word + place.row.bad_words.count;
    size_t count = 0;
    int32_t* found = row.ids + row.count * kBlock;
    for (; word < end; word += 1 + word[0]) {
        const int32_t last = word[word[0]];
        if (!completes(place, word + 1, static_cast<uint64_t>(word[0])) || contains(found, count, last)) continue;
        if (!inside(row, last)) return false;
        --found, ++count, *found = last;
    }
    return ban(row, found, count);
}

// ── stop ids before min_tokens ──────────────────────────────────────────────────────────────────────────────────────

bool must_go_on(const Place& place) { return place.output() < place.row.min_tokens && place.row.banned_until.count > 0; }

bool ban_stops(BlockRow& row, const Place& place) { return ban(row, place.row.banned_until.items, place.row.banned_until.count); }

// ── bias ────────────────────────────────────────────────────────────────────────────────────────────────────────────

bool biased(const Place& place) { return place.row.logit_bias.count > 0; }

bool add_bias(BlockRow& row, const Place& place) {
    for (uint64_t i = 0; i < place.row.logit_bias.count; ++i) {
        const Bias& each = place.row.logit_bias.items[i];
        const int32_t id = static_cast<int32_t>(each.id);
        if (id != each.id || !inside(row, id)) return false;
        set(row, id, static_cast<float>(static_cast<double>(get(row, id)) + each.bias));
        look_again(row, id);
    }
    return true;
}

// ── penalties ───────────────────────────────────────────────────────────────────────────────────────────────────────

bool penalised(const Place& place) {
    return place.row.repetition_penalty != 1.0 || place.row.frequency_penalty != 0.0 || place.row.presence_penalty != 0.0;
}

// Of an id that was an output so often.
void penalise_id(BlockRow& row, const SampleRow& asked, int32_t id, double times) {
    const double x = static_cast<double>(get(row, id)), present = times > 0.0 ? 1.0 : 0.0;
    const double repeated = x > 0.0 ? x / asked.repetition_penalty : x * asked.repetition_penalty;
    set(row, id, static_cast<float>(repeated - (asked.frequency_penalty * times + asked.presence_penalty * present)));
}

bool penalise(BlockRow& row, const Place& place) {
    const SampleRow& asked = place.row;
    const int32_t* seen = asked.seen.items;
    if (!inside(row, seen, asked.seen.count) || !inside(row, place.drafts, place.known)) return false;
    bool counted[kMostSamples] = {};     // drafts that came before in the history, or among the drafts
    for (uint64_t i = 0; i < asked.seen.count; ++i) {
        int32_t times = asked.times.items[i];
        for (size_t d = 0; d < place.known; ++d)
            if (place.drafts[d] == seen[i]) ++times, counted[d] = true;
        penalise_id(row, asked, seen[i], times);
    }
    for (size_t d = 0; d < place.known; ++d) {
        int32_t times = 0;
        for (size_t i = d; i < place.known && !counted[d]; ++i)
            if (place.drafts[i] == place.drafts[d]) ++times, counted[i] = i > d;
        if (times > 0) penalise_id(row, asked, place.drafts[d], times);
    }
    for (uint64_t i = 0; i < asked.seen.count; ++i) look_again(row, seen[i]);
    for (size_t d = 0; d < place.known; ++d) look_again(row, place.drafts[d]);
    return true;
}

// In the order in which they apply.
struct Edit {
    bool (*asked)(const Place& place);
    bool (*apply)(BlockRow& row, const Place& place);  // false: an id lies outside the vocabulary
};

const Edit kEdits[] = {
    {is_masked, follow_grammar},
    {allows, allow},
    {has_bad_words, ban_bad_words},
    {must_go_on, ban_stops},
    {biased, add_bias},
    {penalised, penalise},
};

}  // namespace

Edited edit(BlockRow& row, const Place& place) {
    Edited found = Edited::nothing;
    for (const Edit& each : kEdits) {
        if (!each.asked(place)) continue;
        if (!each.apply(row, place)) return Edited::refused;
        found = Edited::logits;
    }
    return found;
}

}  // namespace RIDGELINE_LEVEL
}  // namespace ridgeline
