// Work partitioning: splits a step's attention into items for the threads.
#pragma once

#include <algorithm>

#include "attention/online_softmax.h"
#include "attention/prefix_groups.h"

namespace TACO_ISA {

// Approximate rows of a query block: a span's keys and values are read, and on AMX copied, once for
// all of them. A row is one query head of one token; the heads that share a KV head are adjacent.
constexpr int64_t LEAST_BLOCK_ROWS = 64, MOST_BLOCK_ROWS = 256;
// Rows whose arithmetic with a span takes as long as reading it.
constexpr int64_t LEAST_SPAN_WORK = 16;

// Queries of one sequence that attend to one KV head together. Or, of a prefix: one query of each
// of `num_tokens` sequences, from `sequence` on, which attend to what they share.
struct QueryBlock {
    int64_t sequence, kv_head;
    int64_t first_token;     // of the step
    int64_t first_position;  // of the first token in its sequence; the last ones of a prefix
    int64_t num_tokens;
    bool is_prefix = false;
};

// Spans [begin, end).
struct SpanRange {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
};

// Partition of one sequence: query blocks for each KV head, and parts of its spans. Only a sequence
// with a single query block is split into parts, since it has too few items for all threads.
struct SequencePlan {
    int64_t first_token, first_position, num_tokens;
    int64_t num_blocks, num_parts, spans_per_part;
    SpanRange spans;       // seen by any of its tokens
    int64_t record_bytes;  // of the sums of a block's rows over one span
};

// One work item: a query block over one part of the spans that its tokens see.
struct AttentionItem {
    QueryBlock block;
    SpanRange spans;
    bool is_part;  // the block was split; else the item completes its rows
    // Of a part: where the sums of its first span are kept, and how far those of the next one are.
    int64_t record_offset, record_bytes;
};

// What a thread does before and after an item.
struct ItemNeighbors {
    bool is_prefetched;         // keys of its first span (on AMX values too), by the item before
    const AttentionItem* next;  // null: unknown
};

class AttentionPlan {
public:
    AttentionPlan(const Attention& attention, int num_threads)
        : attention_(attention),
          padded_value_dim_(attention.cache.entry(attention.entry).padded_value_dim()) {
        share_prefixes(num_threads);
        const int64_t work = choose_block_rows(num_threads);
        // Several parts per thread, so that a slow one can be compensated.
        if (num_threads > 1) work_per_part_ = work / (8 * num_threads);
        for (int64_t s = 0; s < attention.batch.num_seqs; ++s) {
            const SequencePlan plan = sequence(s);
            max_rows_ = std::max(max_rows_, block_rows(plan));
            num_items_ += num_items(plan);
            num_split_blocks_ += num_split_blocks(plan);
            record_bytes_ += record_bytes(plan);
        }
        // Not by the groups: memory is reserved before they are known.
        const int64_t num_seqs = attention.batch.num_seqs;
        if (num_seqs > 1) {
            const int64_t most_rows = std::max(MOST_BLOCK_ROWS, group());
            max_rows_ = std::max(max_rows_, std::min(num_seqs * group(), most_rows));
            prefix_bytes_ = num_kv_heads() * num_seqs * prefix_bytes_of_sequence();
        }
    }

    int64_t group() const { return attention_.num_heads / num_kv_heads(); }
    int64_t num_kv_heads() const { return attention_.cache.entries[attention_.entry].num_heads; }
    // Rows of a query block that scratch has space for.
    int64_t max_rows() const { return max_rows_; }
    int64_t num_items() const { return num_items_; }
    // Query blocks that were split into parts.
    int64_t num_split_blocks() const { return num_split_blocks_; }
    // The memory for the sums of their spans.
    int64_t record_bytes() const { return record_bytes_; }

    // Items that attend to prefixes, which all others wait for.
    int64_t num_prefix_items() const { return num_prefix_items_; }
    // The memory for the sums over prefixes, and where those of a block of a prefix are.
    int64_t prefix_bytes() const { return prefix_bytes_; }
    int64_t prefix_offset(const QueryBlock& prefix) const {
        const int64_t before = prefix.kv_head * attention_.batch.num_seqs + prefix.sequence;
        return before * prefix_bytes_of_sequence();
    }
    // The group of a sequence; of no spans if they are not shared.
    PrefixGroup prefix_group(int64_t s) const {
        return shares_prefixes_ ? attention_.batch.prefix_groups[s] : PrefixGroup{int32_t(s), 1, 0};
    }
    int64_t prefix_blocks(const PrefixGroup& prefix) const {
        return ceil_div(prefix.count, seqs_per_prefix_);
    }
    int64_t num_prefix_items(const PrefixGroup& prefix) const {
        return prefix.spans ? prefix_blocks(prefix) * num_kv_heads() : 0;
    }
    AttentionItem prefix_item(const PrefixGroup& prefix, int64_t index) const {
        AttentionItem item{};
        item.block = prefix_block(prefix, index / num_kv_heads(), index % num_kv_heads());
        item.spans = {0, prefix.spans};
        return item;
    }
    QueryBlock prefix_block(const PrefixGroup& prefix, int64_t index, int64_t head) const {
        const int64_t skipped = index * seqs_per_prefix_, first = prefix.first + skipped;
        const int64_t count = std::min(seqs_per_prefix_, prefix.count - skipped);
        const int64_t first_position = prefix.spans * SPAN - count;
        return {first, head, attention_.batch.query_start[first], first_position, count, true};
    }
    // The block of a prefix that holds a sequence.
    QueryBlock prefix_block_of(const PrefixGroup& prefix, int64_t s, int64_t head) const {
        return prefix_block(prefix, (s - prefix.first) / seqs_per_prefix_, head);
    }

    SequencePlan sequence(int64_t s) const {
        const Batch& batch = attention_.batch;
        SequencePlan plan;
        plan.first_token = batch.query_start[s];
        plan.num_tokens = batch.query_start[s + 1] - plan.first_token;
        plan.first_position = batch.seq_lens[s] - plan.num_tokens;
        plan.num_blocks = ceil_div(plan.num_tokens, tokens_per_block_);
        plan.spans = spans_seen(plan.first_position, plan.num_tokens);
        plan.spans.begin = std::max<int64_t>(plan.spans.begin, prefix_group(s).spans);
        plan.spans_per_part = std::max<int64_t>(1, work_per_part_ / span_work(block_rows(plan)));
        plan.num_parts =
            plan.num_blocks == 1 ? ceil_div(plan.spans.count(), plan.spans_per_part) : 1;
        plan.record_bytes =
            SpanSums::num_floats(block_rows(plan), padded_value_dim_) * int64_t(sizeof(float));
        return plan;
    }

    int64_t num_items(const SequencePlan& plan) const {
        return plan.num_blocks * num_kv_heads() * plan.num_parts;
    }
    int64_t num_split_blocks(const SequencePlan& plan) const {
        return plan.num_parts > 1 ? num_kv_heads() : 0;
    }
    int64_t record_bytes(const SequencePlan& plan) const {
        return num_split_blocks(plan) * plan.spans.count() * plan.record_bytes;
    }

    // Item `index` of a sequence, whose records begin at `records_offset`. The last query blocks
    // come first: they see the most tokens.
    AttentionItem item(int64_t s, const SequencePlan& plan, int64_t index,
                       int64_t records_offset) const {
        const int64_t part = index % plan.num_parts;
        AttentionItem item = whole_block(s, plan, index / plan.num_parts, records_offset);
        if (item.is_part) {
            const int64_t skipped = part * plan.spans_per_part;
            item.record_offset += skipped * plan.record_bytes;
            item.spans.begin += skipped;
            item.spans.end = std::min(item.spans.end, item.spans.begin + plan.spans_per_part);
        }
        return item;
    }

    // Query block `index` of a sequence, over all spans that it sees.
    AttentionItem whole_block(int64_t s, const SequencePlan& plan, int64_t index,
                              int64_t records_offset) const {
        const int64_t head = index % num_kv_heads();
        const int64_t skipped = (plan.num_blocks - 1 - index / num_kv_heads()) * tokens_per_block_;
        AttentionItem item;
        item.block = {s, head, plan.first_token + skipped, plan.first_position + skipped,
                      std::min(tokens_per_block_, plan.num_tokens - skipped)};
        item.spans = spans_seen(item.block.first_position, item.block.num_tokens);
        item.spans.begin = std::max(item.spans.begin, plan.spans.begin);
        item.is_part = plan.num_parts > 1;
        item.record_offset = records_offset + head * plan.spans.count() * plan.record_bytes;
        item.record_bytes = plan.record_bytes;
        return item;
    }

private:
    // Decides whether prefixes are attended to once for all their sequences: not if that leaves
    // threads without work.
    void share_prefixes(int num_threads) {
        const Batch& batch = attention_.batch;
        if (!batch.prefix_groups || attention_.window || attention_.block_sparse.block_size) return;
        seqs_per_prefix_ = std::max<int64_t>(1, MOST_BLOCK_ROWS / group());
        const int64_t wanted_blocks = ceil_div(num_threads, num_kv_heads());
        for (int64_t s = 0; s < batch.num_seqs; s += batch.prefix_groups[s].count) {
            const PrefixGroup& prefix = batch.prefix_groups[s];
            if (prefix.spans == 0) continue;
            const int64_t seqs = std::max<int64_t>(2, ceil_div(prefix.count, wanted_blocks));
            seqs_per_prefix_ = std::min(seqs_per_prefix_, seqs);
        }
        for (int64_t s = 0; s < batch.num_seqs; s += batch.prefix_groups[s].count) {
            num_prefix_items_ += num_prefix_items(batch.prefix_groups[s]);
        }
        shares_prefixes_ = num_prefix_items_ >= num_threads;
        if (!shares_prefixes_) num_prefix_items_ = 0;
    }

    // Bytes of the sums over a prefix for each of its sequences and KV heads.
    int64_t prefix_bytes_of_sequence() const {
        const int64_t floats = group() * (padded_value_dim_ + 2) + 2 * LANES;
        return round_up(floats * int64_t(sizeof(float)), 64);
    }

    // Takes the largest query blocks of which no item is more than a quarter of a thread's share.
    // Returns the work of the step.
    int64_t choose_block_rows(int num_threads) {
        for (int64_t rows = MOST_BLOCK_ROWS;; rows /= 2) {
            tokens_per_block_ = std::max<int64_t>(1, rows / group());
            int64_t work = 0, largest_item = 0;
            for (int64_t s = 0; s < attention_.batch.num_seqs; ++s) {
                const SequencePlan plan = sequence(s);
                const int64_t block_work = plan.spans.count() * span_work(block_rows(plan));
                work += plan.num_blocks * num_kv_heads() * block_work;
                // A single block will be split.
                if (plan.num_blocks > 1) largest_item = std::max(largest_item, block_work);
            }
            if (rows == LEAST_BLOCK_ROWS || 4 * num_threads * largest_item <= work) return work;
        }
    }

    // Rows of the sequence's largest query block.
    int64_t block_rows(const SequencePlan& plan) const {
        return std::min(tokens_per_block_, plan.num_tokens) * group();
    }

    // Work of attending to a span, in rows: however few they are, it is read from memory.
    static int64_t span_work(int64_t rows) { return std::max(LEAST_SPAN_WORK, rows); }

    SpanRange spans_seen(int64_t first_position, int64_t num_tokens) const {
        const int64_t window = attention_.window;
        const int64_t first = window ? std::max<int64_t>(0, first_position - window + 1) : 0;
        return {first / SPAN, ceil_div(first_position + num_tokens, SPAN)};
    }

    const Attention& attention_;
    const int64_t padded_value_dim_;
    int64_t tokens_per_block_ = 1;
    // With arrays for the 7 rows of a decode step side by side, AVX2 was 2% slower.
    int64_t max_rows_ = LEAST_BLOCK_ROWS;
    int64_t work_per_part_ = int64_t(1) << 40;
    int64_t num_items_ = 0, num_split_blocks_ = 0, record_bytes_ = 0;
    bool shares_prefixes_ = false;
    int64_t seqs_per_prefix_ = 1, num_prefix_items_ = 0, prefix_bytes_ = 0;
};

// Finds items of prefixes by number, as PlanWalk.
class PrefixWalk {
public:
    explicit PrefixWalk(const AttentionPlan& plan) : plan_(plan), prefix_(plan.prefix_group(0)) {}

    AttentionItem item(int64_t index) {
        if (index < first_) {
            prefix_ = plan_.prefix_group(0);
            first_ = 0;
        }
        while (index >= first_ + plan_.num_prefix_items(prefix_)) {
            first_ += plan_.num_prefix_items(prefix_);
            prefix_ = plan_.prefix_group(prefix_.first + prefix_.count);
        }
        return plan_.prefix_item(prefix_, index - first_);
    }

private:
    const AttentionPlan& plan_;
    PrefixGroup prefix_;
    int64_t first_ = 0;
};

// Finds items, or query blocks that were split, by number. A thread asks for increasing numbers, so
// that it passes over the sequences once; or, when it helps others, for lower ones again.
class PlanWalk {
public:
    explicit PlanWalk(const AttentionPlan& plan) : plan_(plan), current_(plan.sequence(0)) {}

    AttentionItem item(int64_t index) {
        if (index < first_) restart();
        while (index >= first_ + plan_.num_items(current_))
            skip_sequence(plan_.num_items(current_));
        return plan_.item(sequence_, current_, index - first_, records_offset_);
    }
    AttentionItem split_block(int64_t index) {
        if (index < first_) restart();
        while (index >= first_ + plan_.num_split_blocks(current_)) {
            skip_sequence(plan_.num_split_blocks(current_));
        }
        return plan_.whole_block(sequence_, current_, index - first_, records_offset_);
    }

private:
    void restart() {
        sequence_ = first_ = records_offset_ = 0;
        current_ = plan_.sequence(0);
    }
    void skip_sequence(int64_t passed) {
        first_ += passed;
        records_offset_ += plan_.record_bytes(current_);
        current_ = plan_.sequence(++sequence_);
    }

    const AttentionPlan& plan_;
    int64_t sequence_ = 0, first_ = 0, records_offset_ = 0;
    SequencePlan current_;
};

}  // namespace TACO_ISA
