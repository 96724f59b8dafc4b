#include "runtime/follow.h"

#include <string.h>
#include <time.h>

#include "runtime/plan.h"

namespace ridgeline {

namespace {

int64_t cpu_nanoseconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Adds what this thread computes to the row's time.
class Charge {
public:
    explicit Charge(Follower& row) : row_(row), began_(cpu_nanoseconds()) {}
    ~Charge() { row_.nanoseconds += cpu_nanoseconds() - began_; }
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

private:
    Follower& row_;
    const int64_t began_;
};

}  // namespace

void move_place(const GrammarCalls& calls, Follower& row) {
    if (row.matcher == nullptr || row.token < 0 || calls.stopped(row.matcher)) return;
    const Charge charge(row);
    const uint32_t id = static_cast<uint32_t>(row.token);
    calls.consume(row.matcher, &id, 1);  // what is wrong with it the next call says
}

void write_mask(const GrammarCalls& calls, Follower& row) {
    if (row.matcher == nullptr) return;
    const Charge charge(row);
    row.state = calls.mask(row.matcher, row.mask, calls.bytes) == 0 ? kMasked : kLost;
    if (row.state == kLost)
        memset(row.mask, 0xff, calls.room);
    else
        memset(reinterpret_cast<uint8_t*>(row.mask) + calls.bytes, 0, calls.room - calls.bytes);
    row.left = 0;
    for (size_t word = 0; word < calls.room / sizeof(uint32_t); ++word) row.left += __builtin_popcount(row.mask[word]);
}

bool takes(const GrammarCalls& calls, Follower& row, int32_t id) {
    if (row.matcher == nullptr) return true;
    const Charge charge(row);
    const uint32_t asked = static_cast<uint32_t>(id);
    return asked < calls.ids && calls.validate(row.matcher, &asked, 1) == 1;
}

template <typename F>
bool Plan::share_side(Side side, uint64_t step, size_t chunks, F run) {
    std::atomic_thread_fence(std::memory_order_acquire);
    return team_->share(sides_[side], step, chunks, run);
}

void Plan::move_row(size_t row) {
    move_place(*wanted_.calls, wanted_.followers[row]);
    if (!is_asked(row)) write_mask(*wanted_.calls, wanted_.followers[row]);
}

bool Plan::move_ahead(uint64_t step) {
    std::atomic_thread_fence(std::memory_order_acquire);
    return team_->claim(sides_[kMove], step, step_.selected, [&](size_t row) { move_row(row); });
}

bool Plan::meet_masks(uint64_t step) {
    if (!share_side(kMove, step, step_.selected, [&](size_t row) { move_row(row); })) return false;
    return share_side(kDecide, step, 1, [&](size_t) {
        if (!asks_) return void(screened_ = screens(wanted_.masks));
        ahead_.assign(wanted_.masks, wanted_.masks + step_.selected);
        for (size_t row = 0; row < step_.selected; ++row)
            if (is_asked(row)) ahead_[row] = nullptr;
        screened_ = screens(ahead_.data());
    });
}

bool Plan::ask_grammars(uint64_t step, int thread) {
    uint8_t* scratch = scratch_of(thread);
    const auto ask = [&](size_t row) {
        Follower& follower = wanted_.followers[row];
        if (!is_asked(row) || takes(*wanted_.calls, follower, screen_->best(row))) return screen_->settle(row);
        write_mask(*wanted_.calls, follower);
        if (follower.state == kLost) return screen_->settle(row);
        screen_->look_again(row, follower.mask, scratch);
    };
    if (!share_side(kAsk, step, step_.selected, ask)) return false;
    const size_t chunks = screen_->settled() ? 0 : screen_->chunks();
    return share_side(kAgain, step, chunks, [&](size_t chunk) { screen_->find(chunk, static_cast<size_t>(thread), scratch); });
}

}  // namespace ridgeline
