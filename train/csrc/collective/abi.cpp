// The C ABI: see taco_train/collective/library.py. Functions return a Code and fill in a Report.
#include <cstring>
#include <new>

#include "collective/all_reduce.h"
#include "collective/codec.h"
#include "collective/float16.h"
#include "collective/moves.h"
#include "collective/reduce.h"
#include "collective/sparse_all_reduce.h"
#include "collective/topk.h"

using namespace taco::collective;

namespace {

struct Report {
    int32_t rank;  // that is gone, silent or disagrees; -1: none in particular
    char message[508];
};

template <typename Function>
int32_t guarded(Report* report, Function function) {
    report->rank = -1;
    report->message[0] = 0;
    const auto fail = [&](Code code, int rank, const char* message) {
        report->rank = rank;
        std::strncpy(report->message, message, sizeof report->message - 1);
        report->message[sizeof report->message - 1] = 0;
        return static_cast<int32_t>(code);
    };
    try {
        function();
        return static_cast<int32_t>(Code::ok);
    } catch (const Failure& failure) {
        return fail(failure.code, failure.rank, failure.what());
    } catch (const std::bad_alloc&) {
        return fail(Code::broken, -1, "out of memory");
    } catch (const std::exception& error) {
        return fail(Code::broken, -1, error.what());
    }
}

struct CreateArguments {
    int32_t rank, size;
    const int32_t* sockets;   // [size]; -1 at `rank`
    const int32_t* numbers;   // [size] of ranks, as messages name them
    int32_t num_local_ranks;  // 1: no shared memory
    int32_t local_index;
    const int32_t* local_ranks;  // [num_local_ranks]
    const int32_t* bells;        // [num_local_ranks] eventfds
    int32_t memory;              // descriptor
    int32_t padding;
    uint64_t slot_bytes;
    int64_t timeout_milliseconds;
};

struct AllReduceArguments {
    void* data;
    uint64_t count;
    int32_t kind, type, reduction, wire, schedule, uses_stage, num_shards, padding;
};

struct SparseArguments {
    float* data;
    uint64_t count;
    float* residual;  // of this rank's shard; null: it owns none
    float* momentum;  // null: no momentum correction
    uint64_t num_selected;
    double ratio;
    float momentum_factor;
    int32_t schedule, uses_stage, num_shards, averages, as_float16;
};

struct MoveArguments {
    Description description;
    int32_t num_sends, num_receives;
    const int32_t *send_ranks, *receive_ranks;
    char *const *send_data, *const *receive_data;
    const uint64_t *send_bytes, *receive_bytes;
    uint64_t longest;
    int32_t is_shared, may_be_shorter;
};

std::vector<Part> parts(int count, const int32_t* ranks, char* const* data, const uint64_t* bytes) {
    std::vector<Part> result;
    for (int i = 0; i < count; ++i) result.push_back({ranks[i], data[i], bytes[i]});
    return result;
}

}  // namespace

#define TACO_EXPORT extern "C" __attribute__((visibility("default")))

TACO_EXPORT uint64_t taco_collective_memory_bytes(int32_t num_ranks, uint64_t slot_bytes) {
    return Stage::bytes_of(num_ranks, slot_bytes);
}

// Takes over all descriptors, also when it fails.
TACO_EXPORT int32_t taco_collective_create(const CreateArguments* arguments, Group** group,
                                           Report* report) {
    return guarded(report, [&] {
        const CreateArguments& a = *arguments;
        std::unique_ptr<Stage> stage;
        if (a.num_local_ranks > 1) {
            stage = std::make_unique<Stage>(a.local_index, a.memory, a.slot_bytes,
                                            std::vector<int>(a.bells, a.bells + a.num_local_ranks));
        }
        *group = new Group(a.rank, std::vector<int>(a.sockets, a.sockets + a.size),
                           std::vector<int>(a.numbers, a.numbers + a.size), std::move(stage),
                           std::vector<int>(a.local_ranks, a.local_ranks + a.num_local_ranks),
                           a.timeout_milliseconds);
    });
}

TACO_EXPORT void taco_collective_destroy(Group* group) { delete group; }

// Appends a schedule: its number is that of the schedules before it. `ranks` has the ranks of all
// levels one after another.
TACO_EXPORT void taco_collective_add_schedule(Group* group, int32_t is_ring, int32_t num_levels,
                                              const int32_t* num_ranks, const int32_t* num_owners,
                                              const int32_t* ranks) {
    Schedule schedule;
    schedule.is_ring = is_ring;
    for (int i = 0; i < num_levels; ++i) {
        schedule.levels.push_back({std::vector<int>(ranks, ranks + num_ranks[i]), num_owners[i]});
        ranks += num_ranks[i];
    }
    group->schedules.push_back(std::move(schedule));
}

TACO_EXPORT int32_t taco_collective_all_reduce(Group* group, const AllReduceArguments* arguments,
                                               Report* report) {
    return guarded(report, [&] {
        const AllReduceArguments& a = *arguments;
        AllReduceOptions options;
        options.kind = static_cast<Kind>(a.kind);
        options.type = static_cast<Type>(a.type);
        options.reduction = static_cast<Reduction>(a.reduction);
        options.wire = static_cast<WireFormat>(a.wire);
        options.schedule = a.schedule;
        options.uses_stage = a.uses_stage;
        options.num_shards = a.num_shards;
        all_reduce(*group, a.data, a.count, options);
    });
}

TACO_EXPORT int32_t taco_collective_sparse_all_reduce(Group* group,
                                                      const SparseArguments* arguments,
                                                      Report* report) {
    return guarded(report, [&] {
        const SparseArguments& a = *arguments;
        SparseOptions options;
        options.schedule = a.schedule;
        options.uses_stage = a.uses_stage;
        options.num_shards = a.num_shards;
        options.averages = a.averages;
        options.as_float16 = a.as_float16;
        options.num_selected = a.num_selected;
        options.residual = a.residual;
        options.momentum = a.momentum;
        options.momentum_factor = a.momentum_factor;
        sparse_all_reduce(*group, a.data, a.count, a.ratio, options);
    });
}

// Bytes of the message with the `num_selected` largest of `count` values, which are taken out of
// `values` and `momentum` (may be null). `out` has room for taco_collective_encoded_capacity bytes.
TACO_EXPORT uint64_t taco_collective_encode(float* values, float* momentum, uint64_t count,
                                            uint64_t num_selected, int32_t as_float16, char* out) {
    std::vector<uint32_t> indices;
    select_largest(values, count, num_selected, indices);
    return encode(values, momentum, indices, as_float16, out);
}

TACO_EXPORT uint64_t taco_collective_encoded_capacity(uint64_t count, uint64_t num_selected,
                                                      int32_t as_float16) {
    return encoded_capacity(count, num_selected, as_float16);
}

// Adds the values of a message to `out`, of `count` values.
TACO_EXPORT int32_t taco_collective_decode(const char* data, uint64_t bytes, uint64_t count,
                                           int32_t as_float16, float* out, Report* report) {
    return guarded(report,
                   [&] { Decoder(data, bytes, count, as_float16).add_until(count, out, 0); });
}

TACO_EXPORT int32_t taco_collective_move(Group* group, const MoveArguments* a, Report* report) {
    return guarded(report, [&] {
        move(*group, a->description,
             parts(a->num_sends, a->send_ranks, a->send_data, a->send_bytes),
             parts(a->num_receives, a->receive_ranks, a->receive_data, a->receive_bytes),
             a->longest, a->is_shared, a->may_be_shorter);
    });
}

TACO_EXPORT int32_t taco_collective_broadcast(Group* group, const Description* description,
                                              char* data, uint64_t bytes, int32_t parent,
                                              int32_t num_children, const int32_t* children,
                                              Report* report) {
    return guarded(report, [&] {
        broadcast(*group, *description, data, bytes, parent,
                  std::vector<int>(children, children + num_children));
    });
}

// From any thread.
TACO_EXPORT void taco_collective_abort(Group* group, const char* message) { group->abort(message); }

// From any thread.
TACO_EXPORT void taco_collective_state(const Group* group, uint64_t* operation, int32_t* rank,
                                       const char** stage) {
    const Group::State state = group->state();
    *operation = state.operation;
    *rank = state.awaited_rank;
    *stage = state.stage;
}

// `out` in the accumulator type; then divided by `divisor`, unless it is 0, and converted to
// `type` in `result`, unless it is null.
TACO_EXPORT void taco_collective_reduce(int32_t type, int32_t reduction, void* out,
                                        const void* const* inputs, uint64_t num_inputs,
                                        uint64_t count, int64_t divisor, void* result) {
    const Type element = static_cast<Type>(type);
    reduce(element, static_cast<Reduction>(reduction), out, inputs, num_inputs, count);
    if (divisor) divide(accumulator_of(element), out, count, divisor);
    if (result) convert(element, result, accumulator_of(element), out, count);
}

TACO_EXPORT void taco_collective_convert(int32_t to, void* out, int32_t from, const void* in,
                                         uint64_t count) {
    convert(static_cast<Type>(to), out, static_cast<Type>(from), in, count);
}

TACO_EXPORT void taco_collective_portable_float16(int32_t narrows, void* out, const void* in,
                                                  uint64_t count) {
    if (narrows) {
        portable_float16_from_float32(static_cast<uint16_t*>(out), static_cast<const float*>(in),
                                      count);
    } else {
        portable_float32_from_float16(static_cast<float*>(out), static_cast<const uint16_t*>(in),
                                      count);
    }
}
