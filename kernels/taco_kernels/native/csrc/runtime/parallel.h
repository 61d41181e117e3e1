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

    // As `share` in chunks of one item, for items that prefetch what the next one reads. Calls
    // body(item, next): `next` is what the thread does afterwards, or -1 if not known yet. The last
    // items are taken one by one, so that the threads end together.
    template <class Body>
    void share_ahead(int64_t items, Body body) {
        std::atomic<int64_t>& counter = next_counter();
        const auto take = [&] { return counter.fetch_add(1, std::memory_order_relaxed); };
        const int64_t last_items = items - 2 * count_;
        for (int64_t item = take(); item < items;) {
            const int64_t next = item < last_items ? take() : -1;
            {
                const Span span(log_, SpanKind::part, item);
                body(item, next < items ? next : -1);
            }
            item = next >= 0 ? next : take();
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
