// Memory that the ranks of one host share: counters, and slots for chunks of tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/types.h"

namespace taco::collective {

constexpr int kDepth = 4;  // chunks that can be in the slots at once

// Counters only grow: of operations (`arrived`), and of chunks over all operations.
enum class Counter : uint32_t { any, arrived, copied_in, reduced, published, copied_out };
constexpr size_t kNumCounters = 6;

struct alignas(64) LocalRank {
    std::atomic<uint64_t> counters[kNumCounters];
    std::atomic<uint32_t> bell;      // futex: changes when the rank is woken up
    std::atomic<uint32_t> sleeping;  // 0: awake, else a Sleep
    std::atomic<uint32_t> wake_counter;
    std::atomic<uint64_t> wake_target;
    Description descriptions[2];  // of operations with even and odd number
};

enum class Sleep : uint32_t { awake, futex, poll };

class Stage {
public:
    // `bells[i]`: eventfd that wakes local rank i up when it sleeps in poll. Takes all descriptors.
    // `memory`: descriptor of at least `bytes_of(num_ranks, slot_bytes)`, zeros at first.
    Stage(int index, int memory, size_t slot_bytes, std::vector<int> bells);
    ~Stage();
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

    static size_t bytes_of(int num_ranks, size_t slot_bytes);

    int index() const { return index_; }
    int num_ranks() const { return static_cast<int>(bells_.size()); }
    size_t slot_bytes() const { return slot_bytes_; }
    char* input_of(int local_rank, uint64_t chunk) const;
    char* result(uint64_t chunk) const;

    void publish_description(uint64_t operation, const Description& description);
    const Description& description_of(int local_rank, uint64_t operation) const;

    uint64_t get(int local_rank, Counter counter) const;
    // Smallest value among the first `num_ranks` ranks.
    uint64_t minimum(Counter counter, int num_ranks) const;
    // Sets the counter of this rank and wakes those up that wait for it.
    void set(Counter counter, uint64_t value);

    // Sleeping: `prepare`, look again at what is waited for, then `sleep` or `cancel`.
    uint32_t prepare(Sleep sleep, Counter counter, uint64_t target);
    void cancel();
    // Sleeps until woken up or for `milliseconds`.
    void sleep(uint32_t bell, int milliseconds);
    int bell_socket() const { return bells_[index_]; }
    void clear_bell_socket();
    void wake(int local_rank);

private:
    LocalRank& rank(int local_rank) const { return ranks_[local_rank]; }

    int index_;
    size_t slot_bytes_;
    size_t total_bytes_;
    std::vector<int> bells_;
    char* memory_;
    LocalRank* ranks_;
};

}  // namespace taco::collective
