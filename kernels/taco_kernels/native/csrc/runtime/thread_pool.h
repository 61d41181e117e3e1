// The threads themselves. Kernels see only a Thread (parallel.h).
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/parallel.h"

// Whether a wait looks for long or only briefly before it sleeps. One that looked for long in vain
// says that whoever is waited for has no core: looking on would keep another core from it. After n
// such waits in a row the next 2^n - 1 are brief.
class Patience {
public:
    bool is_long();
    void looked_for_long(bool in_vain);

private:
    static constexpr int32_t MOST = 5;
    // Threads share them and may lose each other's changes: they only ever guess.
    std::atomic<int32_t> num_in_vain_{0}, num_brief_{0};
};

// A place where threads wait for a number to change: they look for a while, then sleep.
class Signal {
public:
    uint32_t value() const { return value_.load(std::memory_order_acquire); }
    void advance();
    // Returns once the value is no longer `seen`.
    void wait(uint32_t seen);
    void wait(uint32_t seen, Patience& patience);

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

    // Threads of a region, its caller included: fewer than wanted where the system gave no more.
    int num_threads() const { return int(threads_.size()) + 1; }

    // Calls region once on every thread, this one included, and returns when all are done.
    void run(const Region& region);

    // In the child of a fork, which has none of the threads: they are started anew when needed.
    void forget_threads();

private:
    friend class Thread;
    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };
    struct Start {
        Pool* pool;
        int index;
        uint32_t regions_seen;
    };

    void start_threads();
    static void* thread_main(void* start);
    void serve(const Start& start);
    void barrier();

    const int num_wanted_;
    const std::vector<int32_t> cpus_;
    std::vector<Start> starts_;
    std::vector<pthread_t> threads_;
    bool is_started_ = false;
    std::unique_ptr<std::mutex> callers_;

    const Region* region_ = nullptr;  // null tells the threads to end
    alignas(64) Signal regions_;
    alignas(64) std::atomic<int32_t> num_arrived_{0};
    alignas(64) Signal barriers_;
    Patience patience_;  // at barriers: between regions nothing but time is waited for
    Counter counters_[2];
};

// The kernels of one instruction set, which only the CPU kernels' own code knows.
struct Kernels;

struct TacoPool {
    TacoPool(int num_threads, const int32_t* cpus, const Kernels& table)
        : threads(num_threads, cpus), kernels(table) {}

    Pool threads;
    const Kernels& kernels;
};
