// The thread pool. Kernels see only a Thread of it (parallel.h).
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/parallel.h"

// Decides whether a wait spins for long or only briefly before it sleeps.
//
// A long spin that times out means that the awaited thread has no core, and more spinning would
// keep another core from it. After n time-outs in a row the next 2^n - 1 waits spin briefly.
class SpinBackoff {
public:
    bool spins_long();
    void record_long_spin(bool timed_out);

private:
    static constexpr int32_t MOST = 5;
    // Threads share these and may lose each other's updates: they are only hints.
    std::atomic<int32_t> num_timeouts_{0}, num_short_spins_{0};
};

// A counter that threads wait on: they spin for a while, then sleep.
class Signal {
public:
    uint32_t value() const { return value_.load(std::memory_order_acquire); }
    void advance();
    // Returns once the value is no longer `seen`.
    void wait(uint32_t seen);
    void wait(uint32_t seen, SpinBackoff& spin_backoff);

private:
    bool changes(uint32_t seen, std::chrono::nanoseconds time) const;
    void sleep(uint32_t seen);

    std::atomic<uint32_t> value_{0};
    std::atomic<uint32_t> num_sleepers_{0};
};

class Pool {
public:
    Pool(int num_threads, const int32_t* cpus);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Threads of a region, including the caller; fewer than wanted if the system could not start
    // more.
    int num_threads() const { return int(threads_.size()) + 1; }
    // The number of the next region. Starts its threads: the child of a fork has only its own until
    // then.
    int num_ready_threads();

    // Runs region once on every thread, the caller included, and returns when all are done.
    void run(const Region& region);

    // Records what the threads do in `spans`, [num_threads][capacity] and zeroed, from the next
    // region on. Null stops. Waits for a running region.
    void trace(TraceSpan* spans, int64_t capacity);

    // Called in the child of a fork, which has none of the threads. The next region starts new
    // ones.
    void forget_threads();

private:
    friend class Thread;
    struct Start {
        Pool* pool;
        int index;
        uint32_t regions_seen;
    };

    void start_threads();
    static void* thread_main(void* start);
    void serve(const Start& start);
    void run_on_thread(int index);
    void barrier();

    const int num_wanted_;
    const std::vector<int32_t> cpus_;
    std::vector<Start> starts_;
    std::vector<pthread_t> threads_;
    std::atomic<bool> is_started_{false};
    std::unique_ptr<std::mutex> callers_;

    const Region* region_ = nullptr;  // null tells the threads to end
    alignas(64) Signal regions_;
    alignas(64) std::atomic<int32_t> num_arrived_{0};
    alignas(64) Signal barriers_;
    SpinBackoff spin_backoff_;  // of barriers; waits between regions have no limit to adapt
    ChunkCounter counters_[2][Thread::MAX_RANGES];

    std::vector<TraceLog> logs_;  // one per thread, or none
    // Of the current region, if it is traced.
    int64_t region_begin_ = 0;
    std::vector<int64_t> arrivals_;  // of each thread at the region's end
};

// The kernel table of one instruction set (cpu/csrc/dispatch/kernel_table.h).
struct Kernels;

struct TacoPool {
    TacoPool(int num_threads, const int32_t* cpus, const Kernels& table)
        : threads(num_threads, cpus), kernels(table) {}

    Pool threads;
    const Kernels& kernels;
};
