// Raw mode: copies what followed earlier occurrences of the last tokens in the same sequence.
#pragma once

#include "lookahead/draft_tree.h"
#include "lookahead/slot.h"

// LLMA (Yang et al., "Inference with Reference", 2023), also known as prompt lookup: longest match
// first, then the latest one.
class RawDrafter {
public:
    RawDrafter(const LookaheadOptions& options, const Orders& orders, const Vocabulary& vocabulary)
        : options_(options), orders_(orders), vocabulary_(vocabulary) {}

    void draft(const LookaheadSlot& slot, int32_t max_nodes, int32_t depth, DraftTree& tree) const {
        if (max_nodes == 0) return;
        int32_t num_paths = 0;
        for (int32_t order = options_.raw_max; order >= options_.raw_min; --order) {
            int32_t num_matches = 0;
            const auto take = [&](int32_t next, int32_t length) {
                const int32_t before = tree.count;
                copy(slot.local, next, length, max_nodes, depth, tree);
                num_paths += tree.count > before;
                const bool is_done = num_paths >= options_.raw_paths || tree.count >= max_nodes;
                return !is_done && ++num_matches < MAX_MATCHES;
            };
            slot.local.for_matches(orders_.index_of(order), orders_, take);
            if (num_paths >= options_.raw_paths || tree.count >= max_nodes) return;
        }
    }

private:
    static constexpr int32_t MAX_MATCHES = 64;  // of one length that are considered

    // Copies tokens from position `next` on. Past the sequence's end the copy repeats itself.
    void copy(const LocalIndex& local, int32_t next, int32_t length, int32_t max_nodes,
              int32_t depth, DraftTree& tree) const {
        const int32_t period = local.length() - next;
        int32_t copied[MAX_TREE];
        int32_t node = -1;
        for (int32_t i = 0; i < depth; ++i) {
            copied[i] = i < period ? local.token(next + i) : copied[i - period];
            if (!vocabulary_.has(copied[i])) return;
            int32_t child = tree.find(node, copied[i]);
            if (child < 0) {
                if (tree.count == max_nodes) return;
                child = tree.add(node, copied[i], raw_class(length + i));
            }
            if (vocabulary_.is_eos(copied[i])) return;
            node = child;
        }
    }

    const LookaheadOptions& options_;
    const Orders& orders_;
    const Vocabulary& vocabulary_;
};
