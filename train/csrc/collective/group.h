// The ranks that compute together, as one of them sees it: sockets, shared memory, waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/schedule.h"
#include "collective/sockets.h"
#include "collective/stage.h"

namespace taco::collective {

// What an operation has to do; `Group::run` calls it until it is done.
class Work {
public:
    virtual ~Work() = default;
    // Does what can be done without waiting; returns whether anything was done.
    virtual bool advance() = 0;
    virtual bool done() const = 0;
    // A rank that this one waits for, -1 if none.
    virtual int awaited_rank() const = 0;
    // What is waited for in shared memory: (any, 0) is any change.
    virtual std::pair<Counter, uint64_t> awaited_counter() const { return {Counter::any, 0}; }
    virtual const char* stage_name() const = 0;
};

class Group {
public:
    // `sockets`, `numbers`: see Mesh. `stage` may be null: this rank is alone on its host.
    // `local_ranks`: the ranks of the stage.
    Group(int rank, std::vector<int> sockets, std::vector<int> numbers,
          std::unique_ptr<Stage> stage, std::vector<int> local_ranks, int64_t timeout_milliseconds);
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    // Begins an operation that all ranks take part in.
    void begin(const Description& description);
    // Begins transfers between some ranks: they have no number.
    void begin_exchange();
    // Whether all ranks of the stage have begun this operation; throws Failure if one of them has
    // begun another.
    bool all_arrived();
    int first_not_arrived() const;

    // Runs the work to its end. Throws Failure; the group is of no use then.
    void run(Work& work);

    // From any thread: `run` throws, now and from now on.
    void abort(const std::string& message);

    // From any thread: what this rank does. `stage` points to a constant.
    struct State {
        uint64_t operation;
        int awaited_rank;  // -1: none
        const char* stage;
    };
    State state() const;

    int rank() const { return rank_; }
    int size() const { return mesh.size(); }
    uint64_t operation() const { return operation_; }
    const std::vector<int>& local_ranks() const { return local_ranks_; }
    uint64_t take_chunks(uint64_t num_chunks);  // numbers of slots for this operation

    Mesh mesh;
    std::unique_ptr<Stage> stage;
    std::vector<Schedule> schedules;         // by number: all ranks know the same ones
    std::vector<std::vector<char>> buffers;  // kept between operations

private:
    void wait(Work& work, int64_t& stalled_since);
    void sleep(Work& work);
    void throw_if_aborted();

    int rank_;
    std::vector<int> local_ranks_;
    int64_t timeout_milliseconds_;
    int num_spins_;
    int abort_event_;
    uint64_t operation_ = 0;
    uint64_t next_chunk_ = 0;
    int num_checked_ = 0;  // ranks of the stage whose description is known to be equal
    Description description_;
    std::vector<pollfd> polled_;

    std::atomic<bool> aborted_{false};
    std::mutex abort_mutex_;
    std::string abort_message_;

    std::atomic<uint64_t> state_operation_{0};
    std::atomic<int> state_rank_{-1};
    std::atomic<const char*> state_stage_{"idle"};
};

}  // namespace taco::collective
