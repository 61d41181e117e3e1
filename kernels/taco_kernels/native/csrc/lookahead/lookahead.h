// What the lookahead cache is told, and what it gives (see lookahead_cache.h).
#pragma once

#include "runtime/types.h"

constexpr int32_t MAX_MATCH = 16;  // longest context that is looked up
constexpr int32_t MAX_TREE = 63;   // nodes of a tree, the root not counted
constexpr int32_t MAX_PATHS = 16;  // of a tree, side by side
constexpr int32_t MAX_CELL = 64;   // tokens that are known to follow a context

// Weights count how often a token followed, in sixteenths, so that they can decay.
constexpr int32_t WEIGHT_ONE = 16;

enum class LookaheadMode : int32_t { raw = 0, turbo = 1, hybrid = 2 };

struct LookaheadOptions {
    LookaheadMode mode;
    int32_t num_slots;
    int32_t max_len;           // longer sequences are neither learned nor drafted for
    int32_t vocab_size;        // ids from here on are never drafted
    int32_t copy_length;       // depth of a tree
    int32_t raw_min, raw_max;  // matches of raw, longest first
    int32_t raw_paths;
    int32_t min_match, max_match;  // contexts of turbo, longest first
    int32_t cell_size;
    int32_t cell_top;            // entries of a cell that are candidates
    int32_t max_paths;           // nodes of a turbo tree at one depth
    int32_t threshold;           // weight below which a full cell gives an entry away at once
    int32_t decay;               // of a full cell's weights, in 65536ths
    int32_t start_weight;        // that a token of the sequence itself has before it is counted
    int32_t target_parallelism;  // rows and drafts of a step at most, of raw; 0: no limit
    int32_t num_eos;
    const int32_t* eos_ids;
    const float* priors;  // [NUM_CLASSES], the share of drafts that are believed to be accepted
    uint64_t secret[2];
    void* table;  // zeros; null: nothing is learned beyond a sequence
    int64_t table_bytes;
    int64_t local_bytes;  // the most that the indexes of all sequences may take
};

// Sequences with their tokens. `namespaces` keep apart what must not be learned from one another.
struct LookaheadSequences {
    int64_t count;
    const int32_t* slots;       // null: they are learned and have no slots
    const int32_t* num_prompt;  // null where slots are
    const int32_t* num_tokens;
    const int32_t* token_ids;  // [sum(num_tokens)]
    const uint64_t* namespaces;
    bool skips_prompt;  // prompts are not learned
};

struct LookaheadTokens {
    int64_t count;
    const int32_t* slots;
    const int32_t* num_tokens;
    const int32_t* token_ids;  // [sum(num_tokens)]
};

// Trees as DraftTrees of the worker has them.
struct LookaheadTrees {
    int64_t count;
    const int32_t* slots;
    const int32_t* max_nodes;
    int32_t* num_nodes;  // [count]
    int32_t* token_ids;  // [count * MAX_TREE], of which the first sum(num_nodes) are given
    int32_t* parents;
    int32_t* classes;
};
