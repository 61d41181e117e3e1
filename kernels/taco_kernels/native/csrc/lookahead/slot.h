// A sequence of the batch.
#pragma once

#include "lookahead/local.h"

struct LookaheadSlot {
    LookaheadSlot() { context.start(0); }

    Context context;
    LocalIndex local;
    int32_t length = 0;  // tokens of the sequence

    // How many tokens of raw drafts were right lately, and the draft whose fate is open.
    double hits = 0;
    int32_t num_pending = 0;
    int32_t pending[MAX_TREE];

    // Learns from the tokens that came. A draft that they do not reach the end of says nothing.
    void settle(const int32_t* tokens, int32_t count) {
        const int32_t most = std::min(count, num_pending);
        int32_t right = 0;
        while (right < most && tokens[right] == pending[right]) ++right;
        if (right < count || right == num_pending) hits += (right - hits) / 4;
        num_pending = 0;
    }
};

// Who may be drafted.
struct Vocabulary {
    int32_t size;
    int32_t num_eos;
    const int32_t* eos_ids;

    bool has(int32_t token) const { return uint32_t(token) < uint32_t(size); }
    bool is_eos(int32_t token) const {
        return std::find(eos_ids, eos_ids + num_eos, token) != eos_ids + num_eos;
    }
};
