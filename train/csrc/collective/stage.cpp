#include "collective/stage.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "collective/failure.h"

namespace taco::collective {
namespace {

constexpr size_t kPage = 4096;

size_t counters_bytes(int num_ranks) {
    return (num_ranks * sizeof(LocalRank) + kPage - 1) / kPage * kPage;
}

}  // namespace

size_t Stage::bytes_of(int num_ranks, size_t slot_bytes) {
    return counters_bytes(num_ranks) + kDepth * slot_bytes * (num_ranks + 1);
}

Stage::Stage(int index, int memory, size_t slot_bytes, std::vector<int> bells)
    : index_(index),
      slot_bytes_(slot_bytes),
      total_bytes_(bytes_of(static_cast<int>(bells.size()), slot_bytes)),
      bells_(std::move(bells)) {
    void* mapped = mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    const int error = errno;
    close(memory);
    if (mapped == MAP_FAILED) {
        for (int bell : bells_) close(bell);
        throw Failure(Code::broken, -1,
                      std::string("cannot map shared memory: ") + std::strerror(error));
    }
    memory_ = static_cast<char*>(mapped);
    ranks_ = reinterpret_cast<LocalRank*>(memory_);
}

Stage::~Stage() {
    munmap(memory_, total_bytes_);
    for (int bell : bells_) close(bell);
}

char* Stage::input_of(int local_rank, uint64_t chunk) const {
    const size_t slot = (chunk % kDepth) * (num_ranks() + 1) + local_rank;
    return memory_ + counters_bytes(num_ranks()) + slot * slot_bytes_;
}

char* Stage::result(uint64_t chunk) const { return input_of(num_ranks(), chunk); }

void Stage::publish_description(uint64_t operation, const Description& description) {
    rank(index_).descriptions[operation % 2] = description;
}

const Description& Stage::description_of(int local_rank, uint64_t operation) const {
    return rank(local_rank).descriptions[operation % 2];
}

uint64_t Stage::get(int local_rank, Counter counter) const {
    return rank(local_rank).counters[static_cast<size_t>(counter)].load(std::memory_order_acquire);
}

uint64_t Stage::minimum(Counter counter, int num_ranks) const {
    uint64_t value = UINT64_MAX;
    for (int i = 0; i < num_ranks; ++i) value = std::min(value, get(i, counter));
    return value;
}

void Stage::set(Counter counter, uint64_t value) {
    // Sequentially consistent, like `prepare`: of two ranks that set counters at the same time one
    // sees both, and a rank that goes to sleep is seen or sees the counter.
    rank(index_).counters[static_cast<size_t>(counter)].store(value, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int i = 0; i < num_ranks(); ++i) {
        LocalRank& other = rank(i);
        if (i == index_ || other.sleeping.load(std::memory_order_acquire) == 0) continue;
        const uint32_t awaited = other.wake_counter.load(std::memory_order_relaxed);
        if (awaited != static_cast<uint32_t>(Counter::any)) {
            const auto awaited_counter = static_cast<Counter>(awaited);
            if (awaited_counter != counter) continue;
            if (minimum(counter, num_ranks()) < other.wake_target.load(std::memory_order_relaxed)) {
                continue;
            }
        }
        wake(i);
    }
}

void Stage::wake(int local_rank) {
    LocalRank& other = rank(local_rank);
    const auto sleep = static_cast<Sleep>(other.sleeping.exchange(0));
    other.bell.fetch_add(1);
    if (sleep == Sleep::poll) {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(bells_[local_rank], &one, sizeof one);
    } else {
        syscall(SYS_futex, &other.bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
}

uint32_t Stage::prepare(Sleep sleep, Counter counter, uint64_t target) {
    LocalRank& own = rank(index_);
    const uint32_t bell = own.bell.load();
    own.wake_counter.store(static_cast<uint32_t>(counter), std::memory_order_relaxed);
    own.wake_target.store(target, std::memory_order_relaxed);
    own.sleeping.store(static_cast<uint32_t>(sleep), std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return bell;
}

void Stage::cancel() { rank(index_).sleeping.store(0, std::memory_order_relaxed); }

void Stage::sleep(uint32_t bell, int milliseconds) {
    const timespec limit{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    syscall(SYS_futex, &rank(index_).bell, FUTEX_WAIT, bell, &limit, nullptr, 0);
    cancel();
}

void Stage::clear_bell_socket() {
    uint64_t value;
    [[maybe_unused]] const ssize_t got = read(bells_[index_], &value, sizeof value);
}

}  // namespace taco::collective
