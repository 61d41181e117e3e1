#include "runtime/parallel.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>

#include "runtime/thread_pool.h"

namespace {

// Longer than any wait inside a healthy step, and shorter than it takes to wake a sleeping thread.
constexpr auto LONG_SPIN = std::chrono::microseconds(50);
constexpr auto SHORT_SPIN = std::chrono::microseconds(3);
constexpr int SPINS_PER_CLOCK_READ = 32;

void futex_wait(const std::atomic<uint32_t>& value, uint32_t seen) {
    syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& value) {
    syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void bind_to_cpu(pthread_t thread, int32_t cpu) {
    cpu_set_t* set = CPU_ALLOC(cpu + 1);
    if (set == nullptr) return;
    const size_t size = CPU_ALLOC_SIZE(cpu + 1);
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    pthread_setaffinity_np(thread, size, set);  // an unbound thread is slower and not wrong
    CPU_FREE(set);
}

template <size_t COUNT>
void reset(ChunkCounter (&counters)[COUNT]) {
    for (ChunkCounter& counter : counters) counter.value.store(0, std::memory_order_relaxed);
}

void name_thread(pthread_t thread, int index) {
    char name[16];  // as top and debuggers show it
    std::snprintf(name, sizeof name, "taco-cpu-%d", index);
    pthread_setname_np(thread, name);
}

}  // namespace

void Signal::advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    // Either this load sees the sleeper, or the sleeper's futex call sees the new value.
    if (num_sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(value_);
}

void Signal::wait(uint32_t seen) {
    if (!changes(seen, LONG_SPIN)) sleep(seen);
}

void Signal::wait(uint32_t seen, SpinBackoff& spin_backoff) {
    const bool spins_long = spin_backoff.spins_long();
    const bool has_changed = changes(seen, spins_long ? LONG_SPIN : SHORT_SPIN);
    if (spins_long) spin_backoff.record_long_spin(!has_changed);
    if (!has_changed) sleep(seen);
}

bool Signal::changes(uint32_t seen, std::chrono::nanoseconds time) const {
    const auto start = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; ++i) {
            if (value() != seen) return true;
            __builtin_ia32_pause();
        }
    } while (std::chrono::steady_clock::now() - start < time);
    return false;
}

void Signal::sleep(uint32_t seen) {
    num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) futex_wait(value_, seen);
    num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

bool SpinBackoff::spins_long() {
    const int32_t num_short_spins = num_short_spins_.load(std::memory_order_relaxed);
    if (num_short_spins > 0) num_short_spins_.store(num_short_spins - 1, std::memory_order_relaxed);
    return num_short_spins == 0;
}

void SpinBackoff::record_long_spin(bool timed_out) {
    const int32_t seen = num_timeouts_.load(std::memory_order_relaxed);
    const int32_t num_timeouts = timed_out ? std::min(seen + 1, MOST) : 0;
    if (num_timeouts != seen) num_timeouts_.store(num_timeouts, std::memory_order_relaxed);
    if (timed_out) num_short_spins_.store((1 << num_timeouts) - 1, std::memory_order_relaxed);
}

Pool::Pool(int num_threads, const int32_t* cpus)
    : num_wanted_(num_threads),
      cpus_(cpus == nullptr ? std::vector<int32_t>()
                            : std::vector<int32_t>(cpus, cpus + num_threads)),
      callers_(new std::mutex) {
    start_threads();
}

Pool::~Pool() {
    region_ = nullptr;
    regions_.advance();
    for (pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void Pool::start_threads() {
    num_arrived_.store(0, std::memory_order_relaxed);
    starts_.clear();
    for (int i = 1; i < num_wanted_; ++i) starts_.push_back({this, i, regions_.value()});
    for (Start& start : starts_) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, thread_main, &start) != 0) break;
        name_thread(thread, start.index);
        if (!cpus_.empty()) bind_to_cpu(thread, cpus_[start.index]);
        threads_.push_back(thread);
    }
    is_started_ = true;
}

int Pool::num_ready_threads() {
    if (!is_started_) {
        std::lock_guard<std::mutex> turn(*callers_);
        if (!is_started_) start_threads();
    }
    return num_threads();
}

void Pool::forget_threads() {
    threads_.clear();
    is_started_ = false;
    callers_.release();  // a thread that no longer exists may hold it: leak it
    callers_.reset(new std::mutex);
}

void* Pool::thread_main(void* start) {
    const Start& given = *static_cast<Start*>(start);
    given.pool->serve(given);
    return nullptr;
}

void Pool::serve(const Start& start) {
    for (uint32_t seen = start.regions_seen;; ++seen) {
        regions_.wait(seen);
        if (region_ == nullptr) return;
        run_on_thread(start.index);
    }
}

void Pool::run(const Region& region) {
    std::lock_guard<std::mutex> turn(*callers_);
    if (!is_started_) start_threads();
    for (auto& counters : counters_) reset(counters);
    region_ = &region;
    if (!logs_.empty()) region_begin_ = trace_clock();
    regions_.advance();
    run_on_thread(0);
    for (size_t i = 0; i < logs_.size(); ++i) {
        // Only now is the end known, and the other threads no longer touch their logs.
        const int64_t end = trace_clock();
        logs_[i].add(SpanKind::wait, 0, arrivals_[i], end);
        logs_[i].add(SpanKind::region, 0, region_begin_, end);
    }
}

void Pool::run_on_thread(int index) {
    TraceLog* const log = logs_.empty() ? nullptr : &logs_[size_t(index)];
    if (log) log->add(SpanKind::start, 0, region_begin_, trace_clock());
    Thread thread(*this, index, num_threads(), log);
    (*region_)(thread);
    if (log) arrivals_[size_t(index)] = trace_clock();
    barrier();
}

void Pool::trace(TraceSpan* spans, int64_t capacity) {
    std::lock_guard<std::mutex> turn(*callers_);
    logs_.clear();
    if (spans == nullptr) return;
    for (int i = 0; i < num_wanted_; ++i) logs_.emplace_back(spans + i * capacity, capacity);
    arrivals_.resize(logs_.size());
}

void Pool::barrier() {
    const uint32_t seen = barriers_.value();
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads()) {
        num_arrived_.store(0, std::memory_order_relaxed);
        barriers_.advance();
    } else {
        barriers_.wait(seen, spin_backoff_);
    }
}

void Thread::barrier() {
    const Span span(log_, SpanKind::wait, 0);
    pool_.barrier();
}

// Counters of two loops alternate. While loop i runs, all threads have left loop i - 1. So its
// counters can be reset for loop i + 1, which no thread enters before thread 0 has passed the end
// of loop i.
ChunkCounter* Thread::next_counters() {
    const uint64_t loop = num_loops_++;
    if (index_ == 0) reset(pool_.counters_[(loop + 1) % 2]);
    return pool_.counters_[loop % 2];
}
