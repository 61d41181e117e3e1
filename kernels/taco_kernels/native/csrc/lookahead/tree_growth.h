// A draft tree while it grows: its nodes with their contexts, and the candidates for the next node.
#pragma once

#include "lookahead/draft_tree.h"
#include "lookahead/slot.h"

constexpr int32_t MAX_MATCHES = 8;  // latest earlier positions that are considered

// An earlier position whose preceding tokens equal the end of a path.
struct Match {
    int32_t next, length;  // position of the following token, and length of the match
};

struct GrownNode {
    Context context;
    int32_t depth;
    int32_t reach;       // longest context to look up: one more than the parent's longest known one
    double probability;  // of the path to it
    int32_t num_matches;
    Match matches[MAX_MATCHES];  // latest first
};

struct Candidate {
    double probability;
    int32_t number;  // order of insertion
    int32_t parent;
    int32_t token;
    int32_t kind;
    int32_t length;  // of the context that proposed it

    bool operator<(const Candidate& other) const {
        return probability != other.probability ? probability < other.probability
                                                : number > other.number;
    }
};

class TreeGrowth {
public:
    static constexpr int32_t ROOT = 0;  // node i is the tree's node i - 1

    DraftTree tree;
    int32_t unexpanded;  // node to expand next

    void start(const LookaheadSlot& slot, int32_t max_nodes, int32_t max_depth) {
        tree.count = num_candidates_ = num_pushed_ = 0;
        local_ = &slot.local;
        max_nodes_ = max_nodes;
        max_depth_ = max_depth;
        std::fill_n(num_at_depth_, max_depth, 0);
        GrownNode& root = nodes_[ROOT];
        root.context = slot.context;
        root.depth = root.num_matches = 0;
        root.probability = 1;
    }

    GrownNode& node(int32_t index) { return nodes_[index]; }
    const GrownNode& node(int32_t index) const { return nodes_[index]; }
    bool is_full() const { return tree.count == max_nodes_; }
    bool is_at_end(int32_t index) const { return nodes_[index].depth == max_depth_; }

    bool has_candidate() const { return num_candidates_ > 0; }
    void push(double probability, int32_t parent, int32_t token, int32_t kind, int32_t length) {
        candidates_[num_candidates_++] = {probability, num_pushed_++, parent, token, kind, length};
        std::push_heap(candidates_, candidates_ + num_candidates_);
    }
    // The likeliest candidate; among equals the one pushed first.
    Candidate pop() {
        std::pop_heap(candidates_, candidates_ + num_candidates_);
        return candidates_[--num_candidates_];
    }

    // Whether fewer than `most` nodes have the candidate's depth; if so counts the candidate.
    bool reserve_at_depth_of(const Candidate& candidate, int32_t most) {
        int32_t& count = num_at_depth_[nodes_[candidate.parent].depth];
        return count < most && ++count;
    }

    int32_t add(const Candidate& candidate, const ContextHash& hash) {
        const GrownNode& parent = nodes_[candidate.parent];
        const int32_t index = tree.add(candidate.parent - 1, candidate.token, candidate.kind) + 1;
        GrownNode& node = nodes_[index];
        node.context.follow(parent.context, candidate.token, hash);
        node.depth = parent.depth + 1;
        node.probability = candidate.probability;
        node.num_matches = 0;
        for (int32_t i = 0; i < parent.num_matches; ++i) {
            const Match& match = parent.matches[i];
            if (token_at(candidate.parent, match.next) != candidate.token) continue;
            node.matches[node.num_matches++] = {match.next + 1, match.length + 1};
        }
        return index;
    }

    // The token at `position`; positions past the sequence's end are on the node's path.
    int32_t token_at(int32_t index, int32_t position) const {
        if (position < local_->length()) return local_->token(position);
        const int32_t depth = position - local_->length() + 1;
        while (nodes_[index].depth > depth) index = tree.parents[index - 1] + 1;
        return tree.tokens[index - 1];
    }

private:
    const LocalIndex* local_;
    int32_t max_nodes_, max_depth_;
    GrownNode nodes_[MAX_TREE + 1];
    Candidate candidates_[MAX_TREE * MAX_PATHS];  // a heap
    int32_t num_candidates_, num_pushed_;
    int32_t num_at_depth_[MAX_TREE];
};
