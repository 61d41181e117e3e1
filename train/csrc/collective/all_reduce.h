// All-reduce through shared memory inside a host and sockets between hosts, chunk by chunk.
#pragma once

#include "collective/group.h"

namespace taco::collective {

enum class WireFormat : int32_t { dense, float16, bfloat16 };

struct AllReduceOptions {
    Kind kind = Kind::all_reduce;
    Type type = Type::float32;
    Reduction reduction = Reduction::sum;
    WireFormat wire = WireFormat::dense;
    int schedule = 0;  // index into Group::schedules
    // Whether ranks of the host reduce in shared memory first; a ring of all ranks does without.
    bool uses_stage = true;
    int num_shards = 1;  // the first local ranks of every host own one shard each
};

// In place on `data`: `count` elements. The same bits on all ranks and in every run. Throws
// Failure.
void all_reduce(Group& group, void* data, size_t count, const AllReduceOptions& options);

}  // namespace taco::collective
