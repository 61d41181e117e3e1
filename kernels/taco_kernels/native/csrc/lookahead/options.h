// Options, inputs and outputs of the lookahead cache (cache.h). The structs are part of the C ABI.
#pragma once

#include "runtime/types.h"

constexpr int32_t MAX_MATCH = 16;  // longest context that is looked up
constexpr int32_t MAX_TREE = 63;   // nodes of a tree, the root not counted
constexpr int32_t MAX_PATHS = 16;  // of a tree
constexpr int32_t MAX_CELL = 64;   // successors kept per context

// Weights count how often a token followed a context, in sixteenths, so that they can decay.
constexpr int32_t WEIGHT_ONE = 16;

enum class LookaheadMode : int32_t { raw = 0, turbo = 1, hybrid = 2 };

struct LookaheadOptions {
    LookaheadMode mode;
    int32_t num_slots;
    int32_t max_len;           // longer sequences are neither learned from nor drafted for
    int32_t vocab_size;        // ids from here on are never drafted
    int32_t copy_length;       // depth of a tree
    int32_t raw_min, raw_max;  // match lengths of raw mode, longest first
    int32_t raw_paths;
    int32_t min_match, max_match;  // context lengths of turbo mode, longest first
    int32_t cell_size;
    int32_t cell_top;            // entries of a cell that become candidates
    int32_t max_paths;           // maximum nodes of a turbo tree at one depth
    int32_t threshold;           // entries below this weight are evicted first from a full cell
    int32_t decay;               // of a full cell's weights, in 65536ths
    int32_t start_weight;        // extra weight of a token that occurs in the sequence itself
    int32_t target_parallelism;  // maximum rows plus drafts of a step; 0: no limit
    int32_t num_eos;
    const int32_t* eos_ids;
    const float* priors;  // [NUM_CLASSES], assumed acceptance rate of each class of drafts
    uint64_t secret[2];
    void* table;  // zeroed; null: sequences do not learn from each other
    int64_t table_bytes;
    int64_t local_bytes;  // limit on the indexes of all sequences together
};

// Sequences with their tokens. Nothing is shared between different namespaces.
struct LookaheadSequences {
    int64_t count;
    const int32_t* slots;       // null: texts to learn that have no slots
    const int32_t* num_prompt;  // null where slots is null
    const int32_t* num_tokens;
    const int32_t* token_ids;  // [sum(num_tokens)]
    const uint64_t* namespaces;
    bool skips_prompt;  // do not learn prompts
};

struct LookaheadTokens {
    int64_t count;
    const int32_t* slots;
    const int32_t* num_tokens;
    const int32_t* token_ids;  // [sum(num_tokens)]
};

// Trees of drafts, columns as in DraftTrees (drafts/draft_trees.h).
struct LookaheadTrees {
    int64_t count;
    const int32_t* slots;
    const int32_t* max_nodes;
    int32_t* num_nodes;  // [count]
    int32_t* token_ids;  // [count * MAX_TREE], of which the first sum(num_nodes) are given
    int32_t* parents;
    int32_t* classes;
};
