#include "collective/group.h"

#include <immintrin.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ctime>

namespace taco::collective {
namespace {

constexpr int kSliceMilliseconds = 50;  // how often a waiting rank looks whether others are there
constexpr int kSpins = 400;             // about 10 us: shorter than putting a thread to sleep

int64_t now_milliseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int num_cores() {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

}  // namespace

Group::Group(int rank, std::vector<int> sockets, std::vector<int> numbers,
             std::unique_ptr<Stage> stage, std::vector<int> local_ranks,
             int64_t timeout_milliseconds)
    : mesh(rank, std::move(sockets), std::move(numbers)),
      stage(std::move(stage)),
      rank_(rank),
      local_ranks_(std::move(local_ranks)),
      timeout_milliseconds_(timeout_milliseconds),
      // Where ranks share cores, spinning takes time from the rank that is waited for.
      num_spins_(static_cast<int>(local_ranks_.size()) <= num_cores() ? kSpins : 0),
      abort_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (abort_event_ < 0) throw Failure(Code::broken, -1, "cannot make an eventfd");
    buffers.resize(1 + 3 * kDepth);
}

Group::~Group() { close(abort_event_); }

void Group::begin(const Description& description) {
    throw_if_aborted();
    description_ = description;
    mesh.begin(++operation_, description);
    state_operation_.store(operation_);
    num_checked_ = 0;
    if (stage) stage->publish_description(operation_, description);
}

void Group::begin_exchange() {
    throw_if_aborted();
    description_ = {};
    description_.kind = Kind::exchange;
    mesh.begin(0, description_);
}

bool Group::all_arrived() {
    while (stage && num_checked_ < stage->num_ranks()) {
        if (stage->get(num_checked_, Counter::arrived) < operation_) return false;
        const Description& other = stage->description_of(num_checked_, operation_);
        if (!(other == description_)) {
            const int rank = local_ranks_[num_checked_];
            throw Failure(Code::mismatch, rank,
                          "ranks disagree: " + mesh.name_of(rank) + " called " + describe(other) +
                              ", " + mesh.name_of(rank_) + " called " + describe(description_) +
                              " as operation " + std::to_string(operation_));
        }
        ++num_checked_;
    }
    return true;
}

int Group::first_not_arrived() const {
    if (!stage || num_checked_ == stage->num_ranks()) return -1;
    return local_ranks_[num_checked_];
}

uint64_t Group::take_chunks(uint64_t num_chunks) {
    const uint64_t first = next_chunk_;
    next_chunk_ += num_chunks;
    return first;
}

void Group::run(Work& work) {
    int64_t stalled_since = 0;
    int spins = 0;
    for (;;) {
        if (work.advance()) {
            stalled_since = 0;
            spins = 0;
        } else if (work.done()) {
            break;
        } else if (spins < num_spins_) {
            ++spins;
            _mm_pause();
        } else {
            wait(work, stalled_since);
        }
    }
    state_stage_.store("idle");
    state_rank_.store(-1);
}

void Group::wait(Work& work, int64_t& stalled_since) {
    state_stage_.store(work.stage_name());
    state_rank_.store(work.awaited_rank());
    throw_if_aborted();
    const int64_t now = now_milliseconds();
    if (stalled_since == 0) stalled_since = now;
    if (now - stalled_since >= kSliceMilliseconds) {
        const int awaited = work.awaited_rank();
        // The rank may have done its part before it closed: look again.
        if (awaited >= 0 && mesh.has_closed(awaited) && !work.advance() && !work.done()) {
            throw Failure(Code::closed, awaited,
                          mesh.name_of(awaited) + " is gone (connection closed)");
        }
        if (now - stalled_since >= timeout_milliseconds_) {
            throw Failure(Code::silent, awaited, "nothing moved within the time limit");
        }
    }
    sleep(work);
}

void Group::sleep(Work& work) {
    const bool in_poll = !stage || !mesh.idle();
    uint32_t bell = 0;
    if (stage) {
        const auto [counter, target] = work.awaited_counter();
        bell = stage->prepare(in_poll ? Sleep::poll : Sleep::futex, counter, target);
        if (work.advance() || aborted_.load()) return stage->cancel();
        if (!in_poll) return stage->sleep(bell, kSliceMilliseconds);
    }
    polled_.clear();
    polled_.push_back({abort_event_, POLLIN, 0});
    if (stage) polled_.push_back({stage->bell_socket(), POLLIN, 0});
    mesh.add_polled(polled_);
    poll(polled_.data(), polled_.size(), kSliceMilliseconds);
    if (stage) {
        stage->cancel();
        if (polled_[1].revents) stage->clear_bell_socket();
    }
}

void Group::abort(const std::string& message) {
    {
        const std::lock_guard<std::mutex> lock(abort_mutex_);
        if (aborted_.load()) return;
        abort_message_ = message;
        aborted_.store(true);
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(abort_event_, &one, sizeof one);
    if (stage) stage->wake(stage->index());
}

void Group::throw_if_aborted() {
    if (!aborted_.load()) return;
    const std::lock_guard<std::mutex> lock(abort_mutex_);
    throw Failure(Code::aborted, -1, abort_message_);
}

Group::State Group::state() const {
    return {state_operation_.load(), state_rank_.load(), state_stage_.load()};
}

}  // namespace taco::collective
