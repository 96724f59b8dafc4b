#include "sample/sampler.h"

namespace ridgeline {

Sampler::Sampler(const SampleKernels& kernels, std::shared_ptr<Team> team, size_t vocab)
    : kernels_(kernels), team_(std::move(team)), vocab_(vocab) {
    scratch_.assign(static_cast<size_t>(team_->threads()), std::vector<double>(sample_scratch(vocab) / sizeof(double)));
}

void Sampler::run(const SampleStep& step, const SampleRow* rows, size_t count) {
    step_ = step;
    rows_ = rows;
    count_ = count;
    const uint64_t tag = team_->next_step() << 32;
    counter_.next.store(tag, std::memory_order_relaxed);
    counter_.done.store(tag, std::memory_order_relaxed);
    team_->enter(walk, this);
}

void Sampler::walk(void* sampler, uint64_t step, int thread) {
    Sampler& self = *static_cast<Sampler*>(sampler);
    self.team_->share(self.counter_, step, self.count_, [&](uint64_t row) {
        self.kernels_.row(self.step_, self.rows_[row], row, self.vocab_, self.scratch_[static_cast<size_t>(thread)].data());
    });
}

}  // namespace ridgeline
