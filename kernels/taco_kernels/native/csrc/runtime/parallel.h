// The thread pool: one parallel region a step, barriers and shared loops inside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

class Pool;

// One thread's view of the region that it runs in. All threads of a region make the same calls in
// the same order.
class Thread {
public:
    Thread(Pool& pool, int index, int count) : pool_(pool), index_(index), count_(count) {}

    int index() const { return index_; }
    int count() const { return count_; }

    // Returns when all threads of the region have come here.
    void barrier();

    // Calls body(begin, end) until [0, items) is covered by chunks of `grain` (the last may be
    // shorter), each given to whichever thread is free: a core that someone else took for a while
    // delays one chunk and not half the work. Ends with a barrier.
    template <class Body>
    void share(int64_t items, int64_t grain, Body body) {
        std::atomic<int64_t>& next = next_counter();
        for (;;) {
            const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= items) break;
            body(begin, begin + grain < items ? begin + grain : items);
        }
        barrier();
    }

private:
    // The counter of this shared loop, at 0 when the first thread arrives.
    std::atomic<int64_t>& next_counter();

    Pool& pool_;
    int index_, count_;
    uint64_t num_loops_ = 0;
};

using Region = std::function<void(Thread&)>;
