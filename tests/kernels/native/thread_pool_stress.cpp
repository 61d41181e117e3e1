// Runs many small regions on a pool and checks what kernels count on: each item of a shared loop
// comes exactly once, and what was written before a barrier is seen behind it.

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "runtime/thread_pool.h"

namespace {

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

struct Loop {
    int64_t items, grain;
    bool is_ahead;  // of single items, each told before the one before it ends
};

void share_chunks(Thread& thread, const Loop& loop, std::vector<int>& counts, bool with_sleepers) {
    int64_t before = -1, num_falls = 0;
    thread.share(loop.items, loop.grain, [&](int64_t begin, int64_t end) {
        require(begin < end && end <= loop.items, "a chunk is out of range");
        require(begin % loop.grain == 0, "a chunk is cut");
        // Its own range and those behind it, then those before it.
        num_falls += begin < before;
        require(num_falls <= 1, "a thread went back to a range");
        before = begin;
        // Longer than a thread spins.
        if (with_sleepers && begin == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        for (int64_t j = begin; j < end; ++j) ++counts[size_t(j)];
    });
}

void share_ahead(Thread& thread, int64_t items, std::vector<int>& counts) {
    int64_t told = -1;
    thread.share_ahead(items, [&](int64_t item, int64_t next) {
        require(item >= 0 && item < items, "an item is out of range");
        require(told < 0 || item == told, "another item came than was told");
        require(next == -1 || (next > item && next < items), "the next item is out of range");
        told = next;
        ++counts[size_t(item)];
    });
    require(told < 0, "an item was told and did not come");
}

// Plain memory throughout: a thread sanitizer sees whether the barriers order the accesses.
void run_region(Pool& pool, const std::vector<Loop>& loops, bool with_sleepers) {
    std::vector<std::vector<int>> counts;
    for (const Loop& loop : loops) counts.emplace_back(size_t(loop.items), 0);
    std::vector<int> visits(size_t(pool.num_threads()), 0);

    pool.run([&](Thread& thread) {
        require(thread.count() == pool.num_threads(), "a thread miscounts the others");
        ++visits[size_t(thread.index())];
        for (size_t i = 0; i < loops.size(); ++i) {
            if (loops[i].is_ahead) {
                share_ahead(thread, loops[i].items, counts[i]);
            } else {
                share_chunks(thread, loops[i], counts[i], with_sleepers);
            }
            for (int count : counts[i]) require(count == 1, "an item did not come exactly once");
            if (i % 3 == 0) thread.barrier();
        }
    });
    for (int count : visits) require(count == 1, "a thread did not run exactly once");
}

void run_regions(Pool& pool, int num_regions, unsigned seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](int64_t most) { return int64_t(random() % uint64_t(most + 1)); };
    for (int i = 0; i < num_regions; ++i) {
        std::vector<Loop> loops(size_t(up_to(6)));
        for (Loop& loop : loops) loop = {up_to(64), 1 + up_to(9), up_to(1) == 1};
        run_region(pool, loops, i % 64 == 0);
    }
}

}  // namespace

int main(int, char** arguments) {
    const int num_threads = std::atoi(arguments[1]), num_regions = std::atoi(arguments[2]);
    Pool pool(num_threads, nullptr);
    require(pool.num_threads() == num_threads, "threads are missing");
    run_regions(pool, num_regions, 1);

    std::thread other([&] { run_regions(pool, num_regions, 2); });
    run_regions(pool, num_regions, 3);
    other.join();

    for (int i = 0; i < 20; ++i) {  // pools that end while their threads start or sleep
        Pool brief(num_threads, nullptr);
        if (i % 2) run_regions(brief, i, unsigned(i));
    }
}
