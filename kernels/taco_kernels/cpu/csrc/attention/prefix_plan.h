// Which sequences of a decode step attend to a shared prefix together, and the items of that work.
#pragma once

#include <algorithm>

#include "attention/attention_item.h"
#include "attention/prefix_groups.h"

namespace TACO_ISA {

class PrefixPlan {
public:
    // Shares nothing.
    PrefixPlan() = default;

    // Shares no prefix if a window or a sparse pattern hides tokens of it. Nor if one item has more
    // work than a thread's share: an item is a whole prefix and cannot be split.
    PrefixPlan(const Attention& attention, int num_threads)
        : query_start_(attention.batch.query_start),
          num_kv_heads_(attention.cache.entries[attention.entry].num_heads),
          wanted_blocks_(ceil_div(num_threads, num_kv_heads_)),
          most_sequences_(MAX_BLOCK_ROWS * num_kv_heads_ / attention.num_heads) {
        const Batch& batch = attention.batch;
        if (attention.window || attention.block_sparse.block_size || most_sequences_ < 2) return;
        if (!batch.prefix_groups) return;
        int64_t work = 0, largest_item = 0;
        for (int64_t s = 0; s < batch.num_seqs; s += batch.prefix_groups[s].count) {
            const PrefixGroup& group = batch.prefix_groups[s];
            const int64_t item_work = group.spans * sequences_per_block(group);
            num_items_ += num_items(group);
            work += num_items(group) * item_work;
            largest_item = std::max(largest_item, item_work);
        }
        if (num_threads * largest_item <= work) {
            groups_ = batch.prefix_groups;
        } else {
            num_items_ = 0;
        }
    }

    int64_t num_items() const { return num_items_; }
    int64_t num_items(const PrefixGroup& group) const {
        return group.spans ? num_kv_heads_ * ceil_div(group.count, sequences_per_block(group)) : 0;
    }

    // The group of a sequence; alone and of no spans if nothing is shared.
    PrefixGroup group_of(int64_t s) const {
        return groups_ ? groups_[s] : PrefixGroup{int32_t(s), 1, 0};
    }
    // Item `index` of a group.
    AttentionItem item(const PrefixGroup& group, int64_t index) const {
        AttentionItem item{};
        item.block = block(group, index / num_kv_heads_, index % num_kv_heads_);
        item.spans = {0, group.spans};
        return item;
    }
    // The block of a group that has a query of sequence `s`.
    QueryBlock block_of(const PrefixGroup& group, int64_t s, int64_t head) const {
        return block(group, (s - group.first) / sequences_per_block(group), head);
    }

private:
    int64_t sequences_per_block(const PrefixGroup& group) const {
        const int64_t even = ceil_div(group.count, wanted_blocks_);
        return std::min(std::max<int64_t>(even, 2), most_sequences_);
    }

    QueryBlock block(const PrefixGroup& group, int64_t index, int64_t head) const {
        const int64_t skipped = index * sequences_per_block(group), first = group.first + skipped;
        const int64_t count = std::min(sequences_per_block(group), group.count - skipped);
        return {first, head, query_start_[first], 0, group.spans * SPAN, count, true};
    }

    const PrefixGroup* groups_ = nullptr;
    const int32_t* query_start_ = nullptr;
    int64_t num_kv_heads_ = 0, wanted_blocks_ = 0, most_sequences_ = 0, num_items_ = 0;
};

// Finds items by number. Numbers must not decrease from call to call.
class PrefixWalk {
public:
    explicit PrefixWalk(const PrefixPlan& plan) : plan_(plan), group_(plan.group_of(0)) {}

    AttentionItem item(int64_t index) {
        while (index >= first_ + plan_.num_items(group_)) {
            first_ += plan_.num_items(group_);
            group_ = plan_.group_of(group_.first + group_.count);
        }
        return plan_.item(group_, index - first_);
    }

private:
    const PrefixPlan& plan_;
    PrefixGroup group_;
    int64_t first_ = 0;
};

}  // namespace TACO_ISA
