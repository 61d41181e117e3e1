// Feeds tokens to the table while the memory of later ones is prefetched.
#pragma once

#include "lookahead/shared_table.h"

// Delays each token by a few others, so that its cells have arrived from memory.
class Learner {
public:
    Learner(LookaheadTable& table, const LookaheadOptions& options)
        : table_(table), shortest_(options.min_match), longest_(options.max_match) {}
    ~Learner() {
        for (int32_t i = 0; i < DELAY; ++i) learn(waiting_[(next_ + i) % DELAY]);
    }

    // Learns that `token` follows each suffix of the context.
    void add(const Context& context, int32_t token) {
        Waiting& place = waiting_[next_];
        next_ = (next_ + 1) % DELAY;
        learn(place);
        place.longest = std::min(context.count, longest_);
        place.token = token;
        std::copy_n(context.hashes, place.longest + 1, place.hashes);
        for (int32_t m = place.longest; m >= shortest_; --m) table_.prefetch(place.hashes[m]);
    }

private:
    static constexpr int32_t DELAY = 4;
    struct Waiting {
        int32_t longest = 0;
        int32_t token;
        uint64_t hashes[MAX_MATCH + 1];
    };

    void learn(const Waiting& waiting) {
        if (waiting.longest < shortest_) return;
        table_.tick();
        for (int32_t m = waiting.longest; m >= shortest_; --m) {
            table_.learn(waiting.hashes[m], waiting.token);
        }
    }

    LookaheadTable& table_;
    const int32_t shortest_, longest_;
    int32_t next_ = 0;
    Waiting waiting_[DELAY];
};
