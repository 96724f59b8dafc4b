// A team of threads that enters a step together: the caller and threads that wait between steps.
//
// Nobody waits for a thread to arrive. Work is cut into chunks that are claimed from a counter, and a phase ends when all its chunks are
// finished: a thread that the system has put aside and that holds no chunk delays nobody.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace ridgeline {

// Chunks of one phase of one step. Both words carry the step's number above the count, so that a thread that is late by a step can
// neither claim nor finish anything.
struct alignas(64) Counter {
    std::atomic<uint64_t> next{0};
    std::atomic<uint64_t> done{0};
};

// Spins, then sleeps, until `word` is no longer `value`.
class Waiter {
public:
    void wait(const std::atomic<uint64_t>& word, uint64_t value);
    void wake(const std::atomic<uint64_t>& word);

private:
    std::atomic<uint32_t> sleepers_{0};
};

class Team {
public:
    using Walk = void (*)(void* work, uint64_t step, int thread);

    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return static_cast<int>(others_.size()) + 1; }

    // How many of them walk the steps that follow: the caller and the first of the others. The rest sleep. Not to be called during a step.
    void use(int threads);
    int active() const { return static_cast<int>(active_.load(std::memory_order_relaxed)); }

    // The number of the next step that `enter` starts; counters are set to it first.
    uint64_t next_step() const { return (step_.load(std::memory_order_relaxed) + 1) & 0xffffffffu; }

    // Every thread calls walk(work, step, its number); returns when the caller's own call returns. Others may still be inside, without
    // a chunk, until `forget`.
    void enter(Walk walk, void* work);

    // Returns when no thread is inside a walk and none will begin one of today's work: its memory may go.
    void forget();

    // Claims chunks of a phase until there are none. `run(chunk)` computes one. False: the step is over.
    template <typename F>
    bool claim(Counter& counter, uint64_t step, uint64_t chunks, F run);

    // The same, then waits until all are finished.
    template <typename F>
    bool share(Counter& counter, uint64_t step, uint64_t chunks, F run);

private:
    void serve(int thread);

    std::atomic<uint64_t> step_{0};
    std::atomic<uint64_t> active_;
    std::atomic<int> inside_{0};
    std::atomic<uint64_t> edition_{0};   // of what follows; odd while it changes
    std::atomic<Walk> walk_{nullptr};
    std::atomic<void*> work_{nullptr};
    bool ended_ = false;
    Waiter starts_, phases_, rests_;
    std::vector<std::thread> others_;
};

template <typename F>
bool Team::claim(Counter& counter, uint64_t step, uint64_t chunks, F run) {
    const uint64_t tag = step << 32;
    for (;;) {
        uint64_t seen = counter.next.load(std::memory_order_acquire);
        if (seen >> 32 != step) return false;
        if (seen - tag >= chunks) return true;
        if (!counter.next.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
        run(seen - tag);
        if (counter.done.fetch_add(1, std::memory_order_acq_rel) + 1 == tag + chunks) phases_.wake(counter.done);
    }
}

template <typename F>
bool Team::share(Counter& counter, uint64_t step, uint64_t chunks, F run) {
    const uint64_t tag = step << 32;
    if (chunks == 0) return true;
    if (!claim(counter, step, chunks, run)) return false;
    for (;;) {
        const uint64_t seen = counter.done.load(std::memory_order_acquire);
        if (seen >> 32 != step) return false;
        if (seen == tag + chunks) return true;
        phases_.wait(counter.done, seen);
    }
}

}  // namespace ridgeline
