// Which parts of a shard a rank sends to and receives from which ranks, step by step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace taco::collective {

// A group of ranks that exchange parts of a shard: the ranks of one rack, or one of each rack.
struct Level {
    std::vector<int> ranks;  // in the same order on all of them
    int num_owners = 0;      // the first ranks each own one part after the reduction
};

// Empty: the rank exchanges nothing.
struct Schedule {
    bool is_ring = false;  // the only level is a ring
    std::vector<Level> levels;
};

struct Range {
    size_t begin = 0, end = 0;
    size_t length() const { return end - begin; }
};

struct Transfer {
    int rank;
    Range range;
};

constexpr uint32_t kMaxTags = 1 << 12;

struct Step {
    enum class Kind {
        reduce,      // what arrives is combined with the own values, in the order of `receives`
        reduce_all,  // all ranks send everything, and each combines it in the order of the level
        gather,      // what arrives is the result
    };
    Kind kind;
    uint32_t tag;  // below kMaxTags: the same on the ranks that exchange in this step
    std::vector<Transfer> sends, receives;
};

struct Steps {
    std::vector<Step> steps;
    size_t num_reductions = 0;  // the first steps reduce, the others gather
    Range owned;                // whose result this rank has after the reductions
    std::vector<int> order;     // of reduce_all: the ranks of the level
};

// The steps of `rank` for a shard of `length` elements. Sources: rings of Patarasu and Yuan (2009);
// one level nested in the other as in arXiv 2010.10458, section 3.
// `exchange_all`: the last level sends everything to all: one message time in place of two.
Steps make_steps(const Schedule& schedule, int rank, size_t length, bool exchange_all);

// Part `index` of `num_parts` parts whose lengths differ by 1 at most.
Range part_of(Range range, size_t index, size_t num_parts);

}  // namespace taco::collective
