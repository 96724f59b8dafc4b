// Experts that are not all in memory: matrices lie in a file as kernels read them, and slots of memory hold those that are used most.
//
// A group is a layer's experts. In a step `require` is told which of them its tokens have chosen, keeps those that are in slots, and begins to
// read the others in place of what has been used least; `address` waits for one. `foresee` is told what the next group's will probably be, and
// has it read while nothing that is required waits for a reader: as long as such guesses are right often enough. Readers are threads of their
// own. What is computed depends on the file's bytes alone, never on where they lie or when they came.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ridgeline {

// A sum of 64 bits that tells damaged bytes: four lanes of multiplications and rotations, as xxHash has them (Collet 2012). `count`: a multiple of 32.
uint64_t sum_bytes(const uint8_t* bytes, size_t count);

class ExpertStore {
public:
    // One matrix of each expert: expert e's lies at `offset` + e * `stride` of the file, and at `place` of its slot; `sum_bytes` of it is sums[e].
    struct Piece {
        uint64_t offset;
        size_t stride, place;
        std::vector<uint64_t> sums;
    };

    struct Counts {
        uint64_t uses, misses;           // experts that steps have chosen, each once a step; of these such as were not in memory
        uint64_t bytes;                  // read
        uint64_t waited;                 // nanoseconds that threads of steps have waited for readers
        uint64_t guesses, right, useful; // foreseen of which a read was begun; of these such as were chosen; of these such as were there by then
    };

    // `slots`: memory of `count` slots of `slot_bytes`, aligned to pages; the caller's. std::runtime_error where `path` cannot be opened.
    ExpertStore(const std::string& path, uint8_t* slots, size_t slot_bytes, size_t count, size_t readers);
    ~ExpertStore();
    ExpertStore(const ExpertStore&) = delete;
    ExpertStore& operator=(const ExpertStore&) = delete;

    // Adds a group; returns its number. No group may have more experts than there are slots.
    size_t add(const std::vector<Piece>& pieces, size_t experts);

    // What a step needs next, each once; `here[i]` becomes whether experts[i] is in memory. All of it stays until the next call, which no
    // thread may make while another computes with what this one was told.
    void require(size_t group, const int32_t* experts, size_t count, bool* here);

    // What a later call for the group will probably ask for; those that are not there are read, an eighth of the slots at most. None of what
    // was required last makes room.
    void foresee(size_t group, const int32_t* experts, size_t count);

    // Whether `foresee` reads: half of the guesses of late were right. Others are still counted, so that it may read again.
    bool reads_ahead() const { return right_share_ >= 0.5; }

    // Where an expert lies that was required last, once it is there. Null: it could not be read, or is damaged: the file is removed then.
    const uint8_t* address(size_t group, int32_t expert);

    // std::runtime_error where a file could not be read since the last call.
    void check();

    Counts counts() const;
    bool direct() const { return direct_; }

private:
    enum class State { empty, reading, ready };

    struct Slot {
        State state = State::empty;
        size_t group = 0, expert = 0;
        uint64_t required = 0;           // number of the last call that required it
        size_t left = 0;                 // parts that are still to be read
        bool failed = false;
        bool foreseen = false;           // not required yet
        bool dropped = false;            // nobody's once its parts have come
    };

    struct Expert {
        std::atomic<const uint8_t*> address{nullptr};  // null unless it is there
        size_t slot = 0;
        bool has_slot = false;
        bool compared = false;           // its bytes have had their sums once
        double value = -1e300;           // log2 of uses, each half as much after `kHalfLife` more steps of the group: larger is kept
    };

    struct Guess {
        size_t expert;
        bool read;
    };

    struct Group {
        std::vector<Piece> pieces;
        std::vector<Guess> guesses;      // since its last call
        std::unique_ptr<Expert[]> experts;
        size_t count;
        uint64_t steps = 0;
    };

    struct Part {
        size_t slot;
        uint64_t offset;
        size_t place, bytes;
    };

    void use(Group& group, Expert& expert);
    size_t least() const;
    void begin(size_t slot, size_t group, size_t expert, bool foreseen);
    void settle(Group& group, const int32_t* experts, size_t count);
    void drop(Expert& expert);
    void serve();
    std::string read(const Part& part);
    std::string compare(size_t slot, const Group& group, size_t expert);

    const std::string path_;
    uint8_t* const memory_;
    const size_t slot_bytes_;
    int file_ = -1;
    bool direct_ = true;

    mutable std::mutex mutex_;
    std::condition_variable work_, arrived_;
    std::vector<Slot> slots_;
    std::deque<Group> groups_;
    std::deque<Part> parts_, ahead_;     // required, foreseen
    uint64_t calls_ = 0;
    std::atomic<double> right_share_{1.0};
    std::string error_;
    bool ended_ = false;
    std::atomic<uint64_t> uses_{0}, misses_{0}, bytes_{0}, waited_{0}, guesses_{0}, right_{0}, useful_{0};
    std::vector<std::thread> readers_;
};

}  // namespace ridgeline
