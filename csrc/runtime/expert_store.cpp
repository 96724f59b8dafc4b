#include "runtime/expert_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace ridgeline {

namespace {

constexpr double kHalfLife = 128;        // steps of a group
constexpr double kGuesses = 64;          // that the share of right ones is taken of, about
constexpr size_t kPartBytes = 512 << 10; // what a reader reads at a time: several read one expert

#ifndef O_DIRECT
constexpr int kDirect = 0;
#else
constexpr int kDirect = O_DIRECT;        // past the page cache, which would hold everything twice
#endif

uint64_t nanoseconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

}  // namespace

uint64_t sum_bytes(const uint8_t* bytes, size_t count) {
    constexpr uint64_t kFirst = 0x9E3779B185EBCA87u, kSecond = 0xC2B2AE3D27D4EB4Fu;
    uint64_t lanes[4] = {kFirst + kSecond, kSecond, 0, 0 - kFirst};
    for (size_t i = 0; i < count; i += sizeof(lanes)) {
        uint64_t words[4];
        memcpy(words, bytes + i, sizeof(words));
        for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = rotate(lanes[lane] + words[lane] * kSecond, 31) * kFirst;
    }
    uint64_t sum = count;
    for (const uint64_t lane : lanes) sum = (sum ^ rotate(lane * kSecond, 31) * kFirst) * kFirst + kSecond;
    sum = (sum ^ sum >> 33) * kSecond;
    return sum ^ sum >> 29;
}

ExpertStore::ExpertStore(const std::string& path, uint8_t* slots, size_t slot_bytes, size_t count, size_t readers)
    : path_(path), memory_(slots), slot_bytes_(slot_bytes), slots_(count) {
    direct_ = kDirect != 0 && (file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | kDirect)) >= 0;
    if (!direct_) file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) throw std::runtime_error(path + " cannot be opened: " + strerror(errno));
    for (size_t i = 0; i < readers; ++i) readers_.emplace_back([this] { serve(); });
}

ExpertStore::~ExpertStore() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
    }
    work_.notify_all();
    for (std::thread& reader : readers_) reader.join();
    close(file_);
}

size_t ExpertStore::add(const std::vector<Piece>& pieces, size_t experts) {
    if (experts > slots_.size()) throw std::invalid_argument("a group has more experts than there are slots");
    for (const Piece& piece : pieces)
        if (piece.place + piece.stride > slot_bytes_ || piece.stride % 32 != 0 || piece.sums.size() != experts)
            throw std::invalid_argument("an expert does not fit a slot, or has no sum");
    groups_.emplace_back();
    groups_.back().pieces = pieces;
    groups_.back().experts = std::make_unique<Expert[]>(experts);
    groups_.back().count = experts;
    return groups_.size() - 1;
}

// 2^value is the sum of 2^(step / kHalfLife) over the steps that used it: one order for all times.
void ExpertStore::use(Group& group, Expert& expert) {
    const double now = static_cast<double>(group.steps) / kHalfLife;
    expert.value = now + std::log2(1.0 + std::exp2(expert.value - now));
}

// The slot to read into: an empty one, else that of the least value that this call does not require; the number of slots where all are busy.
size_t ExpertStore::least() const {
    size_t found = slots_.size();
    double value = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        if (slot.state == State::empty) return i;
        if (slot.state == State::reading || slot.required == calls_) continue;
        // Against the steps of its own group: layers take turns.
        const Group& group = groups_[slot.group];
        const double own = group.experts[slot.expert].value - static_cast<double>(group.steps) / kHalfLife;
        if (found == slots_.size() || own < value) found = i, value = own;
    }
    return found;
}

void ExpertStore::begin(size_t slot, size_t group, size_t expert, bool foreseen) {
    Slot& to = slots_[slot];
    if (to.state == State::ready) {
        Expert& old = groups_[to.group].experts[to.expert];
        old.address.store(nullptr, std::memory_order_release);
        old.has_slot = false;
    }
    to = {State::reading, group, expert, foreseen ? 0 : calls_, 0, false, foreseen, false};
    Expert& now = groups_[group].experts[expert];
    now.slot = slot, now.has_slot = true;
    for (const Piece& piece : groups_[group].pieces)
        for (size_t at = 0; at < piece.stride; at += kPartBytes, ++to.left)
            (foreseen ? ahead_ : parts_).push_back({slot, piece.offset + expert * piece.stride + at, piece.place + at, std::min(kPartBytes, piece.stride - at)});
    work_.notify_all();
}

void ExpertStore::require(size_t number, const int32_t* experts, size_t count, bool* here) {
    std::unique_lock<std::mutex> lock(mutex_);
    Group& group = groups_[number];
    ++calls_;
    ++group.steps;
    settle(group, experts, count);
    for (size_t i = 0; i < count; ++i) {
        Expert& expert = group.experts[static_cast<size_t>(experts[i])];
        use(group, expert);
        if (expert.has_slot) slots_[expert.slot].required = calls_;
        here[i] = expert.address.load(std::memory_order_relaxed) != nullptr;
        uses_ += 1, misses_ += here[i] ? 0 : 1;
    }
    for (size_t i = 0; i < count; ++i) {
        const size_t expert = static_cast<size_t>(experts[i]);
        if (group.experts[expert].has_slot) continue;
        size_t slot;
        arrived_.wait(lock, [&] { return (slot = least()) < slots_.size(); });
        begin(slot, number, expert, false);
    }
}

void ExpertStore::foresee(size_t number, const int32_t* experts, size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Group& group = groups_[number];
    for (size_t i = 0; i < count && group.guesses.size() < slots_.size() / 8; ++i) {
        const size_t expert = static_cast<size_t>(experts[i]);
        const auto same = [&](const Guess& guess) { return guess.expert == expert; };
        if (group.experts[expert].has_slot || std::any_of(group.guesses.begin(), group.guesses.end(), same)) continue;
        const size_t slot = reads_ahead() ? least() : slots_.size();
        group.guesses.push_back({expert, slot < slots_.size()});
        if (slot < slots_.size()) begin(slot, number, expert, true);
    }
}

// What has become of guesses, now that the group's experts are known: those that are still being read go first, or no further.
void ExpertStore::settle(Group& group, const int32_t* experts, size_t count) {
    for (const Guess& guess : group.guesses) {
        Expert& expert = group.experts[guess.expert];
        const bool right = std::find(experts, experts + count, static_cast<int32_t>(guess.expert)) != experts + count;
        right_share_ = right_share_ + ((right ? 1.0 : 0.0) - right_share_) / kGuesses;
        if (!guess.read) continue;
        guesses_ += 1, right_ += right ? 1 : 0;
        if (!expert.has_slot) continue;
        Slot& slot = slots_[expert.slot];
        slot.foreseen = false;
        if (right && slot.state == State::ready) useful_ += 1;
        if (slot.state != State::reading) continue;
        const auto others = std::stable_partition(ahead_.begin(), ahead_.end(), [&](const Part& part) { return part.slot != expert.slot; });
        const bool kept = right && !slot.failed;
        if (kept) parts_.insert(parts_.end(), others, ahead_.end());
        slot.left -= kept ? 0 : static_cast<size_t>(ahead_.end() - others);
        ahead_.erase(others, ahead_.end());
        if (!kept) drop(expert);
    }
    group.guesses.clear();
}

// Gives up an expert that is being read: its slot is empty once no reader has a part of it.
void ExpertStore::drop(Expert& expert) {
    Slot& slot = slots_[expert.slot];
    expert.has_slot = false;
    slot.dropped = true;
    if (slot.left == 0) slot.state = State::empty;
}

const uint8_t* ExpertStore::address(size_t group, int32_t number) {
    Expert& expert = groups_[group].experts[static_cast<size_t>(number)];
    if (const uint8_t* found = expert.address.load(std::memory_order_acquire)) return found;
    const uint64_t began = nanoseconds();
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [&] { return !expert.has_slot || slots_[expert.slot].state == State::ready; });
    waited_ += nanoseconds() - began;
    return expert.address.load(std::memory_order_relaxed);
}

void ExpertStore::check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_.empty()) return;
    std::string said;
    said.swap(error_);
    throw std::runtime_error(said);
}

ExpertStore::Counts ExpertStore::counts() const { return {uses_, misses_, bytes_, waited_, guesses_, right_, useful_}; }

void ExpertStore::serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        work_.wait(lock, [&] { return ended_ || !parts_.empty() || !ahead_.empty(); });
        if (ended_) return;
        std::deque<Part>& from = parts_.empty() ? ahead_ : parts_;
        const Part part = from.front();
        from.pop_front();
        lock.unlock();
        std::string said = read(part);
        lock.lock();
        Slot& slot = slots_[part.slot];
        const Group& group = groups_[slot.group];
        if (said.empty() && slot.left == 1 && !slot.failed && !slot.dropped && !group.experts[slot.expert].compared) {
            lock.unlock();
            said = compare(part.slot, group, slot.expert);
            lock.lock();
            group.experts[slot.expert].compared = said.empty();
        }
        if (!said.empty()) slot.failed = true;
        if (!said.empty() && !slot.foreseen && !slot.dropped) error_ = said;
        if (--slot.left > 0) continue;
        Expert& expert = groups_[slot.group].experts[slot.expert];
        if (slot.dropped) {
            slot.state = State::empty;
        } else if (slot.failed) {
            slot.state = State::empty;
            expert.has_slot = false;
        } else {
            slot.state = State::ready;
            expert.address.store(memory_ + part.slot * slot_bytes_, std::memory_order_release);
        }
        arrived_.notify_all();
    }
}

// Reads a part into its slot; returns what went wrong.
std::string ExpertStore::read(const Part& part) {
    uint8_t* to = memory_ + part.slot * slot_bytes_ + part.place;
    for (size_t done = 0; done < part.bytes;) {
        const ssize_t got = pread(file_, to + done, part.bytes - done, static_cast<off_t>(part.offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return "experts cannot be read from " + path_ + ": " + strerror(errno);
        if (got == 0) return "experts cannot be read from " + path_ + ": it has been shortened";
        done += static_cast<size_t>(got);
    }
    bytes_ += part.bytes;
#ifdef POSIX_FADV_DONTNEED
    if (!direct_) posix_fadvise(file_, static_cast<off_t>(part.offset), static_cast<off_t>(part.bytes), POSIX_FADV_DONTNEED);
#endif
    return {};
}

// An expert whose parts have all come, against its sums. What is wrong with it will be wrong with it again: without the file the next start
// writes another.
std::string ExpertStore::compare(size_t slot, const Group& group, size_t expert) {
    for (const Piece& piece : group.pieces) {
        if (sum_bytes(memory_ + slot * slot_bytes_ + piece.place, piece.stride) == piece.sums[expert]) continue;
        unlink(path_.c_str());
        return "experts in " + path_ + " are damaged: it has been removed, and the next start writes it again";
    }
    return {};
}

}  // namespace ridgeline
