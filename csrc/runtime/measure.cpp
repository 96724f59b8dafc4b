// Runs the loops of a roofline on a team of threads and takes the time.
#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "runtime/platform.h"
#include "runtime/roofline.h"
#include "runtime/team.h"

namespace ridgeline {

namespace {

constexpr int kSpins = 4096;             // looks at a counter before the processor is given away

// Of this thread alone: arithmetic is no slower because the thread had to wait for a processor.
double processor_time() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// All threads of a team, none of which is left inside when a run has ended.
struct Meeting {
    explicit Meeting(int threads) : threads(static_cast<uint32_t>(threads)), began(threads), ended(threads) {}

    void wait(const std::atomic<uint32_t>& counter) const {
        for (int spin = 0; counter.load(std::memory_order_acquire) < threads; ++spin)
            if (spin % kSpins == kSpins - 1) sched_yield();
    }

    const uint32_t threads;
    std::atomic<uint32_t> arrived{0}, finished{0};
    std::vector<double> began, ended;
};

struct Run : Meeting {
    Run(int threads, const RooflineKernels& kernels, const Loop* loop, const uint8_t* data, size_t share, size_t rounds)
        : Meeting(threads), kernels(kernels), loop(loop), data(data), share(share), rounds(rounds) {}

    static void walk(void* work, uint64_t, int thread) {
        Run& run = *static_cast<Run*>(work);
        run.arrived.fetch_add(1, std::memory_order_acq_rel);
        run.wait(run.arrived);
        if (run.loop == nullptr) {
            run.began[thread] = now();
            run.kernels.read(run.data + static_cast<size_t>(thread) * run.share, run.share, run.rounds);
            run.ended[thread] = now();
        } else {
            const double began = processor_time();
            run.loop->run(run.rounds);
            run.began[thread] = 0.0;
            run.ended[thread] = processor_time() - began;
        }
        run.finished.fetch_add(1, std::memory_order_acq_rel);
    }

    const RooflineKernels& kernels;
    const Loop* loop;                    // null: reading
    const uint8_t* data;
    size_t share, rounds;
};

struct Phases : Meeting {
    Phases(Team& team, size_t count) : Meeting(team.threads()), team(team), counters(count) {
        for (Counter& counter : counters) counter.next = counter.done = team.next_step() << 32;
    }

    static void walk(void* work, uint64_t step, int thread) {
        Phases& phases = *static_cast<Phases*>(work);
        phases.arrived.fetch_add(1, std::memory_order_acq_rel);
        phases.wait(phases.arrived);
        phases.began[thread] = now();
        for (Counter& counter : phases.counters) phases.team.share(counter, step, phases.threads, [](uint64_t) {});
        phases.ended[thread] = now();
        phases.finished.fetch_add(1, std::memory_order_acq_rel);
    }

    Team& team;
    std::vector<Counter> counters;
};

struct Entry : Meeting {
    using Meeting::Meeting;

    static void walk(void* work, uint64_t, int) { static_cast<Entry*>(work)->finished.fetch_add(1, std::memory_order_acq_rel); }
};

double duration(const Meeting& meeting) {
    double first = meeting.began[0], last = meeting.ended[0];
    for (const double began : meeting.began) first = began < first ? began : first;
    for (const double ended : meeting.ended) last = ended > last ? ended : last;
    return last - first;
}

template <typename Work>
double timed(Team& team, Work& work) {
    team.enter(Work::walk, &work);
    work.wait(work.finished);
    return duration(work);
}

Loop loop_of(const RooflineKernels& kernels, Ceiling ceiling) {
    switch (ceiling) {
        case Ceiling::kF32: return kernels.f32;
        case Ceiling::kBF16: return has_bf16() ? kernels.bf16 : Loop{nullptr, 0};
        case Ceiling::kInt4: return kernels.int4;
        case Ceiling::kInt5: return kernels.int5;
        case Ceiling::kInt6: return kernels.int6;
        case Ceiling::kInt8: return kernels.int8;
        default: return kernels.clock;
    }
}

}  // namespace

Effort measure(const RooflineKernels& kernels, Team& team, Ceiling ceiling, const uint8_t* data, size_t bytes, size_t rounds) {
    const size_t threads = static_cast<size_t>(team.threads());
    if (ceiling == Ceiling::kRead) {
        const size_t share = bytes / threads / kReadStep * kReadStep;
        Run run(team.threads(), kernels, nullptr, data, share, rounds);
        return {timed(team, run), static_cast<double>(share * threads) * static_cast<double>(rounds)};
    }
    const Loop loop = loop_of(kernels, ceiling);
    if (loop.operations == 0) return {0.0, 0.0};
    Run run(team.threads(), kernels, &loop, nullptr, 0, rounds);
    return {timed(team, run), static_cast<double>(loop.operations * threads) * static_cast<double>(rounds)};
}

Effort measure_phases(Team& team, size_t count) {
    Phases phases(team, count);
    return {timed(team, phases), static_cast<double>(count)};
}

Effort measure_entries(Team& team, size_t count) {
    const double began = now();
    for (size_t i = 0; i < count; ++i) {
        Entry entry(team.threads());
        team.enter(Entry::walk, &entry);
        entry.wait(entry.finished);
    }
    return {now() - began, static_cast<double>(count)};
}

}  // namespace ridgeline
