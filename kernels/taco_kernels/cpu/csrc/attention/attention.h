// Causal attention of a step's queries over the paged KV cache.
//
// A row is one query head of one token. Keys are read in spans of SPAN tokens at absolute
// positions. Each row's scores, weights and weighted values are computed span by span
// (tile_attention.h), and the spans are merged in order (online_softmax.h). So a row's bits depend
// on its query and its sequence alone. Threads share the work as tiles of rows with the same KV
// head. Where tiles are too few, a tile's spans are split into parts (attention_plan.h).
#pragma once

#include "attention/attention_plan.h"
#include "attention/tile_attention.h"
#include "dispatch/kernel_table.h"

namespace TACO_ISA {

// Attention::workspace: the scratch memory of each thread, then the span sums of tiles that were
// split.
class AttentionWorkspace {
public:
    AttentionWorkspace(const Attention& attention, const AttentionPlan& plan, int num_threads)
        : kv_(attention.cache.entry(attention.entry)), rows_(plan.max_rows()) {
        Arena one(nullptr);
        AttentionScratch(one, kv_, rows_);
        scratch_bytes_ = one.used();
        record_floats_ = SpanSums::num_floats(rows_, kv_.padded_value_dim());

        Arena all(attention.workspace);
        threads_ = static_cast<char*>(all.take_bytes(num_threads * scratch_bytes_));
        records_ = all.take<float>(plan.num_records() * record_floats_);
        bytes_ = all.used();
    }

    int64_t bytes() const { return bytes_; }
    AttentionScratch scratch(int thread) const {
        Arena arena(threads_ + thread * scratch_bytes_);
        return AttentionScratch(arena, kv_, rows_);
    }
    float* record(int64_t index) const { return records_ + index * record_floats_; }

private:
    const EntryKV kv_;
    const int64_t rows_;
    int64_t scratch_bytes_, record_floats_, bytes_;
    char* threads_;
    float* records_;
};

inline int64_t attention_workspace(const Attention& attention, int num_threads) {
    const AttentionPlan plan(attention, num_threads);
    return AttentionWorkspace(attention, plan, num_threads).bytes();
}

template <class Item, class Store>
inline void write_row(Item* out, const float* values, F32 factor, int64_t dim, Store store_items) {
    const int64_t whole = dim / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
        store_items(out + d, mul(load(values + d), factor));
    }
    if (whole == dim) return;
    Item tail[LANES];
    store_items(tail, mul(load(values + whole), factor));
    std::copy_n(tail, dim - whole, out + whole);
}

// Divides a tile's rows by their weights and writes them to the output.
inline void write_tile(const Attention& attention, const RowTile& tile, const SpanSums& total) {
    const KVEntry& entry = attention.cache.entries[attention.entry];
    const int64_t dim = entry.value_dim, group = attention.num_heads / entry.num_heads;
    for (int64_t r = 0; r < total.rows; ++r) {
        const int64_t token = tile.first_token + r / group, head = tile.kv_head * group + r % group;
        const int64_t at = token * attention.out_stride + head * dim;
        const float* values = total.values + r * total.padded_dim;
        float weight = total.weight[r];
        if (attention.sinks) weight += reduce_max(exp(set1(attention.sinks[head] - total.best[r])));
        const F32 factor = set1(1.0f / weight);
        if (attention.out_is_operand) {
            write_row(static_cast<Bf16Operand*>(attention.out) + at, values, factor, dim,
                      store_bf16_operand);
        } else {
            write_row(static_cast<float*>(attention.out) + at, values, factor, dim, store);
        }
    }
}

template <class Source>
inline void attend_item(const Attention& attention, const AttentionItem& item,
                        const AttentionWorkspace& workspace, const AttentionScratch& scratch) {
    TileAttention<Source> tile(attention, item.tile, scratch);
    SpanSums total = tile.sums(scratch.total);
    if (!item.is_part) total.clear();
    for (int64_t s = item.spans.begin; s < item.spans.end; ++s) {
        const int64_t record = item.first_record + s - item.spans.begin;
        const SpanSums sums = tile.sums(item.is_part ? workspace.record(record) : scratch.span);
        tile.attend_span(s, sums);
        if (!item.is_part) merge(total, sums);
    }
    if (!item.is_part) write_tile(attention, item.tile, total);
}

// Merges the spans of a tile that was split into parts.
inline void merge_parts(const Attention& attention, const AttentionItem& item,
                        const AttentionWorkspace& workspace, const AttentionScratch& scratch) {
    const EntryKV kv = attention.cache.entry(attention.entry);
    const int64_t rows = item.tile.num_tokens * (attention.num_heads / kv.num_heads);
    const int64_t dim = kv.padded_value_dim();
    SpanSums total(scratch.total, rows, dim);
    total.clear();
    for (int64_t s = 0; s < item.spans.count(); ++s) {
        merge(total, SpanSums(workspace.record(item.first_record + s), rows, dim));
    }
    write_tile(attention, item.tile, total);
}

inline void attend(Thread& thread, const Attention& attention) {
    if (attention.batch.num_seqs == 0) return thread.barrier();
    const AttentionPlan plan(attention, thread.count());
    const AttentionWorkspace workspace(attention, plan, thread.count());
    const AttentionScratch scratch = workspace.scratch(thread.index());

    PlanWalk items(plan);
    thread.share(plan.num_items(), 1, [&](int64_t begin, int64_t) {
        const AttentionItem item = items.item(begin);
        switch (attention.cache.type) {
            case DType::f32: return attend_item<float>(attention, item, workspace, scratch);
            case DType::bf16: return attend_item<bf16>(attention, item, workspace, scratch);
            case DType::i8: return attend_item<int8_t>(attention, item, workspace, scratch);
        }
    });
    if (plan.num_split_tiles() == 0) return;
    PlanWalk tiles(plan);
    thread.share(plan.num_split_tiles(), 1, [&](int64_t begin, int64_t) {
        merge_parts(attention, tiles.split_tile(begin), workspace, scratch);
    });
}

}  // namespace TACO_ISA
