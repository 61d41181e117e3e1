// Turbo: a tree over what followed the longest known context, here and elsewhere.
#pragma once

#include "lookahead/growth.h"
#include "lookahead/table.h"

// A beam search over depths, cut to the likeliest nodes. Nodes are taken in the order of the chance
// of their path, and no more than max_paths at one depth; since a child is no likelier than its
// parent, the first that come at a depth are the ones that a beam would keep.
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
            return root.num_matches < MOST_MATCHES;
        };
        slot.local.for_matches(orders_.index_of(options_.min_match), orders_, take);
        look_up_later(growth, TreeGrowth::ROOT);
    }

    // Looks for children of the node taken last and takes the next one. What that one needs is on
    // its way from memory when this returns, so that other trees should have their turn before the
    // next step of this one. False: the tree is done.
    bool step(TreeGrowth& growth) const {
        expand(growth, growth.unexpanded);
        while (growth.has_candidate() && !growth.is_full()) {
            const Candidate best = growth.pop();
            if (!growth.takes_at_depth_of(best, options_.max_paths)) continue;
            const int32_t node = growth.add(best, hash_);
            growth.node(node).reach = std::min(best.length + 1, options_.max_match);
            if (growth.is_at_end(node) || vocabulary_.is_eos(best.token)) continue;
            if (growth.is_full()) return false;
            look_up_later(growth, node);
            return true;
        }
        return false;
    }

private:
    static constexpr double LEAST_CHANCE = 0.02;  // of a path

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

    // What may follow, with the weight of all, those left out included.
    struct Options {
        Option items[MAX_CELL + MOST_MATCHES];
        int32_t count = 0;
        int64_t total = 0;

        Option& find_or_add(int32_t token) {
            Option* const end = items + count;
            Option* const found =
                std::find_if(items, end, [&](const Option& o) { return o.token == token; });
            if (found == end) items[count++] = {token, 0, UINT32_MAX, MOST_MATCHES};
            return *found;
        }
        // In their order.
        void keep_best(int32_t most) {
            const int32_t num_kept = std::min(count, most);
            if (count > 1) std::partial_sort(items, items + num_kept, items + count);
            count = num_kept;
        }
    };

    void look_up_later(TreeGrowth& growth, int32_t index) const {
        growth.unexpanded = index;
        if (!table_) return;
        const GrownNode& node = growth.node(index);
        for (int32_t m = std::min(node.reach, node.context.count); m >= options_.min_match; --m) {
            table_->prefetch(node.context.hashes[m]);
        }
    }

    // Candidates behind a node, from the longest context of which anything is known.
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
            options.items[options.count++] = {token, weight, age, MOST_MATCHES};
        });
        if (options.count > options_.cell_top) options.keep_best(options_.cell_top);
    }

    // Of the places that agree on `least` tokens.
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
            const double chance = node.chance * double(options_.priors[kind]);
            if (chance >= LEAST_CHANCE) growth.push(chance, index, option.token, kind, length);
        }
    }

    const LookaheadOptions& options_;
    const ContextHash& hash_;
    const Orders& orders_;
    const Vocabulary& vocabulary_;
    const LookaheadTable* table_;
};
