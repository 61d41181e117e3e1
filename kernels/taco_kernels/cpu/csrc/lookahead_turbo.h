// Turbo: a tree over what followed the longest known context, here and elsewhere.
#pragma once

#include "lookahead_slot.h"
#include "lookahead_table.h"
#include "lookahead_tree.h"

// A beam search over depths, cut to the likeliest nodes. Nodes are taken in the order of the chance
// of their path, and no more than max_paths at one depth; since a child is no likelier than its
// parent, the first that come at a depth are the ones that a beam would keep.
class TurboDrafter {
public:
    // `table` may be null.
    TurboDrafter(const LookaheadOptions& options, const ContextHash& hash, const Orders& orders,
                 const Vocabulary& vocabulary, const LookaheadTable* table)
        : options_(options), hash_(hash), orders_(orders), vocabulary_(vocabulary), table_(table) {}

    void draft(const LookaheadSlot& slot, int32_t max_nodes, int32_t depth, DraftTree& tree) const {
        Growth growth(slot.local, tree);
        Node& root = growth.nodes[0];
        root.context = slot.context;
        root.depth = 0;
        root.reach = options_.max_match;
        root.chance = 1;
        prefetch(root.context, root.reach);
        find_matches(slot.local, root);
        expand(growth, 0);
        while (tree.count < max_nodes && growth.num_waiting) {
            const Candidate best = growth.pop();
            int32_t& num_beside = growth.num_at_depth[growth.nodes[best.parent].depth];
            if (num_beside == options_.max_paths) continue;
            ++num_beside;
            const int32_t node = add(growth, best);
            const bool ends = growth.nodes[node].depth == depth || vocabulary_.is_eos(best.token);
            if (!ends && tree.count < max_nodes) expand(growth, node);
        }
    }

private:
    static constexpr int32_t MOST_MATCHES = 8;  // the latest places that are looked at
    static constexpr double LEAST_CHANCE = 0.02;

    // A place in the sequence that agrees with a path: the position behind it, and for how long.
    struct Match {
        int32_t next, length;
    };

    // Node 0 is the root, node i the tree's node i - 1.
    struct Node {
        Context context;
        int32_t depth;
        int32_t reach;  // longest context that may be known
        double chance;
        int32_t num_matches;
        Match matches[MOST_MATCHES];  // the latest first
    };

    struct Candidate {
        double chance;
        int32_t number;  // candidates are counted
        int32_t parent;
        int32_t token;
        int32_t kind;
        int32_t length;  // of the context

        // std::push_heap keeps the greatest on top.
        bool operator<(const Candidate& other) const {
            return chance != other.chance ? chance < other.chance : number > other.number;
        }
    };

    struct Growth {
        Growth(const LocalIndex& l, DraftTree& t) : local(l), tree(t) {}

        const LocalIndex& local;
        DraftTree& tree;
        Node nodes[MAX_TREE + 1];
        Candidate heap[(MAX_TREE + 1) * MAX_PATHS];
        int32_t num_waiting = 0, num_pushed = 0;
        int32_t num_at_depth[MAX_TREE] = {};

        void push(const Candidate& candidate) {
            heap[num_waiting++] = candidate;
            std::push_heap(heap, heap + num_waiting);
        }
        Candidate pop() {
            std::pop_heap(heap, heap + num_waiting);
            return heap[--num_waiting];
        }
    };

    // A token that may follow.
    struct Option {
        int32_t token;
        int64_t weight;
        uint32_t age;   // of its entry; the greatest where it has none
        int32_t match;  // its latest; MOST_MATCHES where it has none

        bool is_local() const { return match < MOST_MATCHES; }
        // Heavier, then later here, then later elsewhere.
        bool operator<(const Option& other) const {
            if (weight != other.weight) return weight > other.weight;
            if (match != other.match) return match < other.match;
            return age != other.age ? age < other.age : token < other.token;
        }
    };

    void prefetch(const Context& context, int32_t reach) const {
        if (!table_) return;
        for (int32_t m = std::min(reach, context.count); m >= options_.min_match; --m) {
            table_->prefetch(context.hashes[m]);
        }
    }

    void find_matches(const LocalIndex& local, Node& root) const {
        root.num_matches = 0;
        local.for_matches(orders_.index_of(options_.min_match), orders_,
                          [&](int32_t next, int32_t length) {
                              root.matches[root.num_matches++] = {next, length};
                              return root.num_matches < MOST_MATCHES;
                          });
    }

    int32_t add(Growth& growth, const Candidate& candidate) const {
        const int32_t index =
            growth.tree.add(candidate.parent - 1, candidate.token, candidate.kind) + 1;
        const Node& parent = growth.nodes[candidate.parent];
        Node& node = growth.nodes[index];
        node.depth = parent.depth + 1;
        node.chance = candidate.chance;
        node.reach = std::min(candidate.length + 1, options_.max_match);
        node.context = parent.context;
        node.context.push(candidate.token, hash_);
        node.num_matches = 0;
        for (int32_t i = 0; i < parent.num_matches; ++i) {
            const Match& match = parent.matches[i];
            if (token_at(growth, candidate.parent, match.next) != candidate.token) continue;
            node.matches[node.num_matches++] = {match.next + 1, match.length + 1};
        }
        return index;
    }

    // Behind the sequence's last token its path goes on.
    int32_t token_at(const Growth& growth, int32_t node, int32_t position) const {
        if (position < growth.local.length()) return growth.local.token(position);
        const int32_t depth = position - growth.local.length() + 1;
        while (growth.nodes[node].depth > depth) node = growth.tree.parents[node - 1] + 1;
        return growth.tree.tokens[node - 1];
    }

    // Candidates behind a node, from the longest context of which anything is known.
    void expand(Growth& growth, int32_t index) const {
        const Node& node = growth.nodes[index];
        Option options[MAX_CELL + MOST_MATCHES];
        for (int32_t m = std::min(options_.max_match, node.context.count); m >= options_.min_match;
             --m) {
            int64_t total = 0;
            int32_t count = 0;
            if (table_ && m <= node.reach)
                count = read_cell(node.context.hashes[m], options, total);
            count = add_matches(growth, index, m, options, count, total);
            if (count) return push(growth, index, m, options, count, total);
        }
    }

    int32_t read_cell(uint64_t hash, Option* options, int64_t& total) const {
        int32_t count = 0;
        table_->for_cell(hash, [&](int32_t token, uint32_t weight, uint32_t age) {
            if (!vocabulary_.has(token)) return;
            total += weight;
            options[count++] = {token, weight, age, MOST_MATCHES};
        });
        if (count <= options_.cell_top) return count;
        std::partial_sort(options, options + options_.cell_top, options + count);
        return options_.cell_top;
    }

    int32_t add_matches(const Growth& growth, int32_t index, int32_t least, Option* options,
                        int32_t count, int64_t& total) const {
        const Node& node = growth.nodes[index];
        for (int32_t i = 0; i < node.num_matches; ++i) {
            if (node.matches[i].length < least) continue;
            const int32_t token = token_at(growth, index, node.matches[i].next);
            if (!vocabulary_.has(token)) continue;
            Option* option = std::find_if(options, options + count,
                                          [&](const Option& o) { return o.token == token; });
            if (option == options + count) options[count++] = {token, 0, UINT32_MAX, MOST_MATCHES};
            const bool is_first = !option->is_local();
            const int64_t weight = WEIGHT_ONE + (is_first ? options_.start_weight : 0);
            option->weight += weight;
            total += weight;
            if (is_first) option->match = i;
        }
        return count;
    }

    void push(Growth& growth, int32_t index, int32_t length, Option* options, int32_t count,
              int64_t total) const {
        const Node& node = growth.nodes[index];
        const int32_t num_kept = std::min(count, options_.max_paths);
        std::partial_sort(options, options + num_kept, options + count);
        for (int32_t i = 0; i < num_kept; ++i) {
            const Option& option = options[i];
            const int32_t matched = option.is_local() ? node.matches[option.match].length : length;
            const int32_t source = option.is_local() ? FROM_SEQUENCE : FROM_TABLE;
            const int32_t kind = evidence_class(source, matched, share_class(option.weight, total));
            const double chance = node.chance * double(options_.priors[kind]);
            if (chance < LEAST_CHANCE) continue;
            growth.push({chance, growth.num_pushed++, index, option.token, kind, length});
            if (table_) prefetch_child(node, option.token, length);
        }
    }

    void prefetch_child(const Node& node, int32_t token, int32_t length) const {
        Context context = node.context;
        context.push(token, hash_);
        prefetch(context, std::min(length + 1, options_.max_match));
    }

    const LookaheadOptions& options_;
    const ContextHash& hash_;
    const Orders& orders_;
    const Vocabulary& vocabulary_;
    const LookaheadTable* table_;
};
