// Turbo mode: a tree of the likeliest continuations, from the shared table and the sequence itself.
#pragma once

#include "lookahead/shared_table.h"
#include "lookahead/tree_growth.h"

// A beam search over depths, limited to the likeliest nodes. Nodes are taken in the order of their
// path's probability, at most max_paths per depth. A child is no likelier than its parent, so the
// first nodes of a depth are those that a beam would keep.
class TurboDrafter {
public:
    // `table` may be null.
    TurboDrafter(const LookaheadOptions& options, const ContextHash& hash, const Orders& orders,
                 const Vocabulary& vocabulary, const LookaheadTable* table)
        : options_(options), hash_(hash), orders_(orders), vocabulary_(vocabulary), table_(table) {}

    void start(const LookaheadSlot& slot, int32_t max_nodes, int32_t max_depth,
               TreeGrowth& growth) const {
        growth.start(slot, max_nodes, max_depth);
        GrownNode& root = growth.node(TreeGrowth::ROOT);
        root.reach = options_.max_match;
        const auto take = [&](int32_t next, int32_t length) {
            root.matches[root.num_matches++] = {next, length};
            return root.num_matches < MAX_MATCHES;
        };
        slot.local.for_matches(orders_.index_of(options_.min_match), orders_, take);
        prefetch_children(growth, TreeGrowth::ROOT);
    }

    // Expands the node that was added last and adds the next one. The memory of that one is being
    // prefetched on return, so step other trees before this one. Returns false when the tree is
    // complete.
    bool step(TreeGrowth& growth) const {
        expand(growth, growth.unexpanded);
        while (growth.has_candidate() && !growth.is_full()) {
            const Candidate best = growth.pop();
            if (!growth.reserve_at_depth_of(best, options_.max_paths)) continue;
            const int32_t node = growth.add(best, hash_);
            growth.node(node).reach = std::min(best.length + 1, options_.max_match);
            if (growth.is_at_end(node) || vocabulary_.is_eos(best.token)) continue;
            if (growth.is_full()) return false;
            prefetch_children(growth, node);
            return true;
        }
        return false;
    }

private:
    static constexpr double MIN_PROBABILITY = 0.02;  // of a path to be drafted

    // A possible next token.
    struct Option {
        int32_t token;
        int64_t weight;
        uint32_t age;   // of its table entry; UINT32_MAX: none
        int32_t match;  // its latest; MAX_MATCHES: none

        bool is_local() const { return match < MAX_MATCHES; }
        // Order: weight, then most recent in this sequence, then most recent elsewhere.
        bool operator<(const Option& other) const {
            if (weight != other.weight) return weight > other.weight;
            if (match != other.match) return match < other.match;
            return age != other.age ? age < other.age : token < other.token;
        }
    };

    // Possible next tokens, with the total weight of all, including those dropped.
    struct Options {
        Option items[MAX_CELL + MAX_MATCHES];
        int32_t count = 0;
        int64_t total = 0;

        Option& find_or_add(int32_t token) {
            Option* const end = items + count;
            Option* const found =
                std::find_if(items, end, [&](const Option& o) { return o.token == token; });
            if (found == end) items[count++] = {token, 0, UINT32_MAX, MAX_MATCHES};
            return *found;
        }
        // Keeps the best ones, sorted.
        void keep_best(int32_t most) {
            const int32_t num_kept = std::min(count, most);
            if (count > 1) std::partial_sort(items, items + num_kept, items + count);
            count = num_kept;
        }
    };

    void prefetch_children(TreeGrowth& growth, int32_t index) const {
        growth.unexpanded = index;
        if (!table_) return;
        const GrownNode& node = growth.node(index);
        for (int32_t m = std::min(node.reach, node.context.count); m >= options_.min_match; --m) {
            table_->prefetch(node.context.hashes[m]);
        }
    }

    // Pushes the candidates after a node, from the longest context with known successors.
    void expand(TreeGrowth& growth, int32_t index) const {
        const GrownNode& node = growth.node(index);
        const int32_t longest = std::min(options_.max_match, node.context.count);
        for (int32_t m = longest; m >= options_.min_match; --m) {
            Options options;
            if (table_ && m <= node.reach) read_cell(node.context.hashes[m], options);
            add_matches(growth, index, m, options);
            if (options.count) return push(growth, index, m, options);
        }
    }

    void read_cell(uint64_t hash, Options& options) const {
        table_->for_cell(hash, [&](int32_t token, uint32_t weight, uint32_t age) {
            if (!vocabulary_.has(token)) return;
            options.total += weight;
            options.items[options.count++] = {token, weight, age, MAX_MATCHES};
        });
        if (options.count > options_.cell_top) options.keep_best(options_.cell_top);
    }

    // Adds the successors of earlier positions that match at least `least` tokens.
    void add_matches(const TreeGrowth& growth, int32_t index, int32_t least,
                     Options& options) const {
        const GrownNode& node = growth.node(index);
        for (int32_t i = 0; i < node.num_matches; ++i) {
            if (node.matches[i].length < least) continue;
            const int32_t token = growth.token_at(index, node.matches[i].next);
            if (!vocabulary_.has(token)) continue;
            Option& option = options.find_or_add(token);
            const int32_t weight = WEIGHT_ONE + (option.is_local() ? 0 : options_.start_weight);
            option.weight += weight;
            options.total += weight;
            option.match = std::min(option.match, i);
        }
    }

    void push(TreeGrowth& growth, int32_t index, int32_t length, Options& options) const {
        const GrownNode& node = growth.node(index);
        options.keep_best(options_.max_paths);
        for (int32_t i = 0; i < options.count; ++i) {
            const Option& option = options.items[i];
            const int32_t source = option.is_local() ? FROM_SEQUENCE : FROM_TABLE;
            const int32_t matched = option.is_local() ? node.matches[option.match].length : length;
            const int32_t share = share_class(option.weight, options.total);
            const int32_t kind = evidence_class(source, matched, share);
            const double probability = node.probability * double(options_.priors[kind]);
            if (probability >= MIN_PROBABILITY)
                growth.push(probability, index, option.token, kind, length);
        }
    }

    const LookaheadOptions& options_;
    const ContextHash& hash_;
    const Orders& orders_;
    const Vocabulary& vocabulary_;
    const LookaheadTable* table_;
};
