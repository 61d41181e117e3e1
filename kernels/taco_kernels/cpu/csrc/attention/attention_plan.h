// Work partitioning: splits a step's attention into items for the threads.
#pragma once

#include <algorithm>

#include "attention/attention_item.h"
#include "attention/online_softmax.h"
#include "attention/prefix_plan.h"

namespace TACO_ISA {

// Rows whose arithmetic with a span takes as long as reading it.
constexpr int64_t MIN_SPAN_WORK = 16;

// Partition of one sequence: query blocks for each KV head, and parts of its spans. Only a sequence
// with a single query block is split into parts, if it has too few heads for all threads.
struct SequencePlan {
    int64_t first_token, first_position, num_tokens;
    int64_t num_blocks, num_parts, spans_per_part;
    SpanRange spans;       // seen by any of its tokens
    int64_t record_bytes;  // of the sums of a block's rows over one span
};

class AttentionPlan {
public:
    // The sizes of blocks and parts do not depend on prefixes, because memory is reserved before
    // prefixes are known. A shared prefix only removes spans from a sequence, so its records never
    // need more memory.
    AttentionPlan(const Attention& attention, int num_threads)
        : attention_(attention),
          padded_value_dim_(attention.cache.entry(attention.entry).padded_value_dim()) {
        const int64_t work = choose_block_rows(num_threads);
        // Several parts per thread, so that a slow one can be compensated.
        if (num_threads > 1) work_per_part_ = work / (8 * num_threads);
        // The sums of a split block take memory for each span.
        splits_ = num_kv_heads() < 4 * num_threads;
        prefixes_ = PrefixPlan(attention, num_threads);
        const int64_t num_seqs = attention.batch.num_seqs;
        if (num_seqs > 1) {
            max_rows_ = std::max(max_rows_, std::min(num_seqs * group(), MAX_BLOCK_ROWS));
        }
        for (int64_t s = 0; s < num_seqs; ++s) {
            const SequencePlan plan = sequence(s);
            max_rows_ = std::max(max_rows_, block_rows(plan));
            num_items_ += num_items(plan);
            num_split_blocks_ += num_split_blocks(plan);
            record_bytes_ += record_bytes(plan);
        }
    }

    // The prefix items. They run before all other items.
    const PrefixPlan& prefixes() const { return prefixes_; }
    int64_t group() const { return attention_.num_heads / num_kv_heads(); }
    int64_t num_kv_heads() const { return attention_.cache.entries[attention_.entry].num_heads; }
    // Rows of a query block that scratch has space for.
    int64_t max_rows() const { return max_rows_; }
    int64_t num_items() const { return num_items_; }
    // Query blocks that were split into parts.
    int64_t num_split_blocks() const { return num_split_blocks_; }
    // The memory for the sums of their spans.
    int64_t record_bytes() const { return record_bytes_; }

    SequencePlan sequence(int64_t s) const {
        const Batch& batch = attention_.batch;
        SequencePlan plan;
        plan.first_token = batch.query_start[s];
        plan.num_tokens = batch.query_start[s + 1] - plan.first_token;
        plan.first_position = batch.seq_lens[s] - plan.num_tokens;
        plan.num_blocks = ceil_div(plan.num_tokens, tokens_per_block_);
        plan.spans = spans_seen(plan.first_position, plan.num_tokens);
        plan.spans.begin = std::max<int64_t>(plan.spans.begin, prefixes_.group_of(s).spans);
        plan.spans_per_part = std::max<int64_t>(1, work_per_part_ / span_work(block_rows(plan)));
        plan.num_parts =
            plan.num_blocks == 1 && splits_ ? ceil_div(plan.spans.count(), plan.spans_per_part) : 1;
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
        const int64_t count = std::min(tokens_per_block_, plan.num_tokens - skipped);
        const int64_t position = plan.first_position + skipped;
        item.block = {s,     head, plan.first_token + skipped, position, position + count,
                      count, false};
        item.spans = spans_seen(item.block.first_position, item.block.num_tokens);
        item.spans.begin = std::max(item.spans.begin, plan.spans.begin);
        item.is_part = plan.num_parts > 1;
        item.record_offset = records_offset + head * plan.spans.count() * plan.record_bytes;
        item.record_bytes = plan.record_bytes;
        return item;
    }

private:
    // Takes the largest query blocks of which no item is more than a quarter of a thread's share.
    // Returns the work of the step.
    int64_t choose_block_rows(int num_threads) {
        for (int64_t rows = MAX_BLOCK_ROWS;; rows /= 2) {
            tokens_per_block_ = std::max<int64_t>(1, rows / group());
            int64_t work = 0, largest_item = 0;
            for (int64_t s = 0; s < attention_.batch.num_seqs; ++s) {
                const SequencePlan plan = sequence(s);
                const int64_t block_work = plan.spans.count() * span_work(block_rows(plan));
                work += plan.num_blocks * num_kv_heads() * block_work;
                // A single block will be split, or its heads are enough items.
                if (plan.num_blocks > 1) largest_item = std::max(largest_item, block_work);
            }
            if (rows == MIN_BLOCK_ROWS || 4 * num_threads * largest_item <= work) return work;
        }
    }

    // Rows of the sequence's largest query block.
    int64_t block_rows(const SequencePlan& plan) const {
        return std::min(tokens_per_block_, plan.num_tokens) * group();
    }

    // Work of attending to a span, in rows: however few they are, it is read from memory.
    static int64_t span_work(int64_t rows) { return std::max(MIN_SPAN_WORK, rows); }

    SpanRange spans_seen(int64_t first_position, int64_t num_tokens) const {
        const int64_t window = attention_.window;
        const int64_t first = window ? std::max<int64_t>(0, first_position - window + 1) : 0;
        return {first / SPAN, ceil_div(first_position + num_tokens, SPAN)};
    }

    const Attention& attention_;
    const int64_t padded_value_dim_;
    int64_t tokens_per_block_ = 1;
    // Not fewer: with scratch for only the 7 rows of a decode step, AVX2 was 2% slower.
    int64_t max_rows_ = MIN_BLOCK_ROWS;
    int64_t work_per_part_ = int64_t(1) << 40;
    bool splits_ = false;
    int64_t num_items_ = 0, num_split_blocks_ = 0, record_bytes_ = 0;
    PrefixPlan prefixes_;
};

// Finds items, or query blocks that were split, by number. Numbers of items rise, so that a thread
// passes over the sequences once; those of split blocks fall where a thread begins to help others.
class PlanWalk {
public:
    explicit PlanWalk(const AttentionPlan& plan) : plan_(plan), current_(plan.sequence(0)) {}

    AttentionItem item(int64_t index) {
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
