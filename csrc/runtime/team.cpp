#include "runtime/team.h"

#include <algorithm>

#include "runtime/platform.h"

namespace ridgeline {

namespace {

// About 60 microseconds: longer than a phase that one thread computes alone, as attention of one short row; shorter than a scheduler's slice.
constexpr int kSpins = 2000;

}  // namespace

void Waiter::wait(const std::atomic<uint64_t>& word, uint64_t value) {
    for (int i = 0; i < kSpins; ++i) {
        if (word.load(std::memory_order_acquire) != value) return;
        pause();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    // The low half changes with every count and every step, so that a wake in between is not lost.
    if (word.load(std::memory_order_seq_cst) == value) sleep_on(word, value);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Waiter::wake(const std::atomic<uint64_t>& word) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all(word);
}

Team::Team(int threads) : active_(static_cast<uint64_t>(threads)) {
    for (int thread = 1; thread < threads; ++thread) others_.emplace_back([this, thread] { serve(thread); });
}

Team::~Team() {
    ended_ = true;
    step_.fetch_add(1, std::memory_order_seq_cst);
    starts_.wake(step_);
    use(threads());
    for (std::thread& other : others_) other.join();
}

void Team::use(int threads) {
    const uint64_t count = static_cast<uint64_t>(std::clamp(threads, 1, this->threads()));
    if (active_.exchange(count, std::memory_order_seq_cst) != count) rests_.wake(active_);
}

void Team::enter(Walk walk, void* work) {
    edition_.fetch_add(1, std::memory_order_seq_cst);
    walk_ = walk;
    work_ = work;
    edition_.fetch_add(1, std::memory_order_seq_cst);
    const uint64_t step = next_step();
    step_.fetch_add(1, std::memory_order_seq_cst);
    starts_.wake(step_);
    walk(work, step, 0);
}

void Team::forget() {
    edition_.fetch_add(1, std::memory_order_seq_cst);
    work_ = nullptr;
    while (inside_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
    edition_.fetch_add(1, std::memory_order_seq_cst);
}

void Team::serve(int thread) {
    for (uint64_t seen = 0;;) {
        const uint64_t active = active_.load(std::memory_order_seq_cst);
        if (static_cast<uint64_t>(thread) >= active) {
            rests_.wait(active_, active);
            continue;
        }
        starts_.wait(step_, seen);
        const uint64_t now = step_.load(std::memory_order_seq_cst);
        if (now == seen) continue;
        seen = now;
        if (ended_) return;
        if (static_cast<uint64_t>(thread) >= active_.load(std::memory_order_seq_cst)) continue;
        inside_.fetch_add(1, std::memory_order_seq_cst);
        const uint64_t edition = edition_.load();
        const Walk walk = walk_.load();
        void* const work = work_.load();
        // A thread that is late may meet the next step's work half written: that step comes next anyway.
        if (edition % 2 == 0 && edition == edition_.load() && work != nullptr) walk(work, seen & 0xffffffffu, thread);
        inside_.fetch_sub(1, std::memory_order_seq_cst);
    }
}

}  // namespace ridgeline
