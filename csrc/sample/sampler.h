// Rows of a step shared out among a team of threads, a row at a time.
#pragma once

#include <memory>
#include <vector>

#include "sample/sample.h"
#include "runtime/team.h"

namespace ridgeline {

class Sampler {
public:
    Sampler(const SampleKernels& kernels, std::shared_ptr<Team> team, size_t vocab);
    ~Sampler() { team_->forget(); }
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    // Answers rows [count] of a step. Not to be called by two threads at a time, nor while the team is in a plan.
    void run(const SampleStep& step, const SampleRow* rows, size_t count);

private:
    static void walk(void* sampler, uint64_t step, int thread);

    const SampleKernels& kernels_;
    const std::shared_ptr<Team> team_;
    const size_t vocab_;
    std::vector<std::vector<double>> scratch_;  // a thread each
    Counter counter_;
    SampleStep step_{};
    const SampleRow* rows_ = nullptr;
    size_t count_ = 0;
};

}  // namespace ridgeline
