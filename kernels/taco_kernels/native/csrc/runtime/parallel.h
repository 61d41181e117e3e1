// A kernel's view of the thread pool: one parallel region, with barriers and shared loops inside.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "runtime/trace.h"

class Pool;

// Counts the chunks of a shared loop that threads have taken, on a separate cache line.
struct alignas(64) ChunkCounter {
    std::atomic<int64_t> value{0};
};

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
    //
    // The chunks are divided into ranges of adjacent ones. A thread first takes the chunks of one
    // range, in order: loops over the same rows or columns so find them in its core's cache.
    // Then it helps with the other ranges, so a core that is busy elsewhere delays one chunk and
    // not half the work. Ends with a barrier.
    template <class Body>
    void share(int64_t items, int64_t grain, Body body) {
        ChunkCounter* const counters = next_counters();
        const int64_t num_chunks = (items + grain - 1) / grain, num_ranges = this->num_ranges();
        const auto begin_of = [&](int64_t range) {
            return (num_chunks * range + num_ranges - 1) / num_ranges;
        };
        const int64_t own = index_ * num_ranges / count_;
        for (int64_t i = 0; i < num_ranges; ++i) {
            const int64_t range = (own + i) % num_ranges;
            const int64_t first = begin_of(range), past = begin_of(range + 1);
            for (;;) {
                const int64_t chunk =
                    first + counters[range].value.fetch_add(1, std::memory_order_relaxed);
                if (chunk >= past) break;
                const int64_t begin = chunk * grain;
                const Span span(log_, SpanKind::part, begin);
                body(begin, begin + grain < items ? begin + grain : items);
            }
        }
        barrier();
    }

    // Chunks from one to that which the same thread most likely takes next.
    int64_t chunk_step() const { return (count_ + num_ranges() - 1) / num_ranges(); }

    // As `share` in chunks of one item, for items that prefetch what the next one reads. Calls
    // body(item, next): `next` is what the thread does afterwards, or -1 if not known yet. The last
    // items are taken one by one, so that the threads end together.
    template <class Body>
    void share_ahead(int64_t items, Body body) {
        std::atomic<int64_t>& counter = next_counters()->value;
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
    // More threads share ranges: each looks at the counters of all ranges.
    static constexpr int64_t MAX_RANGES = 8;
    int64_t num_ranges() const { return count_ < MAX_RANGES ? count_ : MAX_RANGES; }
    // The counters of this shared loop, [num_ranges], 0 when the first thread arrives.
    ChunkCounter* next_counters();

    friend class Pool;

    Pool& pool_;
    TraceLog* const log_;
    int index_, count_;
    uint64_t num_loops_ = 0;
};

using Region = std::function<void(Thread&)>;
