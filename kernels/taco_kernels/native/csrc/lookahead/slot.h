// The lookahead state of one slot of the batch.
#pragma once

#include "lookahead/local_index.h"

struct LookaheadSlot {
    LookaheadSlot() { context.start(0); }

    Context context;
    LocalIndex local;
    int32_t length = 0;  // tokens of the sequence

    // Moving average of accepted tokens per draft, and the draft whose outcome is open.
    double hits = 0;
    int32_t num_pending = 0;
    int32_t pending[MAX_TREE];

    // Updates `hits` with the tokens that followed. If they all match but end before the draft
    // does, the outcome is unknown.
    void record_accepted(const int32_t* tokens, int32_t count) {
        const int32_t most = std::min(count, num_pending);
        int32_t right = 0;
        while (right < most && tokens[right] == pending[right]) ++right;
        if (right < count || right == num_pending) hits += (right - hits) / 4;
        num_pending = 0;
    }
};

// Which tokens may be drafted.
struct Vocabulary {
    int32_t size;
    int32_t num_eos;
    const int32_t* eos_ids;

    bool has(int32_t token) const { return uint32_t(token) < uint32_t(size); }
    bool is_eos(int32_t token) const {
        return std::find(eos_ids, eos_ids + num_eos, token) != eos_ids + num_eos;
    }
};
