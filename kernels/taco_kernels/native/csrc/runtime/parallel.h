// A kernel's view of the thread pool: one parallel region, with barriers and shared loops inside.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "runtime/trace.h"

class Pool;

// One thread of a parallel region. All threads of a region make the same calls in the same order.
class Thread {
public:
    // `log` records what the thread does; null: nothing is recorded.
    Thread(Pool& pool, int index, int count, TraceLog* log)
        : pool_(pool), log_(log), index_(index), count_(count) {}

    int index() const { return index_; }
    int count() const { return count_; }
    TraceLog* log() const { return log_; }

    // Returns when all threads of the region have arrived.
    void barrier();

    // Calls body(begin, end) for chunks of `grain` (the last may be shorter) that cover [0, items).
    // The next free thread takes the next chunk, so a core that is busy elsewhere delays one chunk
    // and not half the work. Ends with a barrier.
    template <class Body>
    void share(int64_t items, int64_t grain, Body body) {
        std::atomic<int64_t>& next = next_counter();
        for (;;) {
            const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= items) break;
            const Span span(log_, SpanKind::part, begin);
            body(begin, begin + grain < items ? begin + grain : items);
        }
        barrier();
    }

private:
    // The counter of this shared loop, 0 when the first thread arrives.
    std::atomic<int64_t>& next_counter();

    Pool& pool_;
    TraceLog* const log_;
    int index_, count_;
    uint64_t num_loops_ = 0;
};

using Region = std::function<void(Thread&)>;
