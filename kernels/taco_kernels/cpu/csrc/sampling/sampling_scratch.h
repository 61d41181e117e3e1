// Scratch memory of one row while a token is sampled from it.
#pragma once

#include "runtime/arena.h"
#include "sampling/sampling_args.h"

// Number and sum of some weights.
struct Tally {
    double sum;
    int64_t count;

    void add(float weight) {
        sum += weight;
        ++count;
    }
    void add(const Tally& other) {
        sum += other.sum;
        count += other.count;
    }
};

// The bits of a positive float, read as an integer, grow with it; ten of them at a time select a
// bucket.
constexpr int64_t WEIGHT_BUCKETS = 1024;

struct RowState {
    float max;     // the greatest logit
    float floor;   // weights below it are dropped
    bool is_done;  // the token is known
};

struct RowScratch {
    RowState* state;
    float* maxima;   // [num_groups], the greatest logit of each group; NaN where there is one
    float* tops;     // [num_groups], the greatest weight of each group
    float* sums;     // [num_groups], of weights that are not dropped
    Tally* buckets;  // [WEIGHT_BUCKETS], of the weights' uppermost bits
    Tally* finer;    // [WEIGHT_BUCKETS], of the bits below
    float* members;  // [vocab_size], weights or logits of some tokens
    int32_t* ids;    // [vocab_size], of these
    PartialSum* partial_sums;  // [num_partial_sums]

    RowScratch(Arena& arena, const LogitRows& logits)
        : state(arena.take<RowState>(1)),
          maxima(arena.take<float>(logits.num_groups())),
          tops(arena.take<float>(logits.num_groups())),
          sums(arena.take<float>(logits.num_groups())),
          buckets(arena.take<Tally>(WEIGHT_BUCKETS)),
          finer(arena.take<Tally>(WEIGHT_BUCKETS)),
          members(arena.take<float>(logits.vocab_size)),
          ids(arena.take<int32_t>(logits.vocab_size)),
          partial_sums(arena.take<PartialSum>(num_partial_sums(logits.vocab_size))) {}

    static int64_t bytes(const LogitRows& logits) {
        Arena counter(nullptr);
        RowScratch counted(counter, logits);
        return counter.used();
    }
    // The scratch of row `index` among those processed at the same time.
    static RowScratch at(void* memory, const LogitRows& logits, int64_t index) {
        Arena arena(static_cast<char*>(memory) + index * bytes(logits));
        return RowScratch(arena, logits);
    }
};

// Bytes for the rows processed at the same time: at most one per thread.
inline int64_t sampling_scratch(const LogitRows& logits, int num_threads) {
    const int64_t rows = logits.count < num_threads ? logits.count : num_threads;
    return rows * RowScratch::bytes(logits);
}
