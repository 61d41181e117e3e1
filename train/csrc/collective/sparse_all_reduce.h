// All-reduce that sends only the largest values between hosts, and keeps the rest for later.
#pragma once

#include "collective/group.h"

namespace taco::collective {

struct SparseOptions {
    int schedule = 0;
    bool uses_stage = true;
    int num_shards = 1;
    bool averages = false;
    bool as_float16 = false;
    size_t num_selected = 0;    // of this rank's shard; the same on the ranks that share the shard
    float* residual = nullptr;  // of this rank's shard; null: it owns none
    float* momentum = nullptr;  // of this rank's shard; null: no momentum correction
    float momentum_factor = 0;
};

// In place: `data` becomes the sum of what the ranks of each shard send. The same bits on all
// ranks. Throws Failure.
void sparse_all_reduce(Group& group, float* data, size_t count, double ratio,
                       const SparseOptions& options);

}  // namespace taco::collective
