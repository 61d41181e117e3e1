// Causal attention of a step's queries over the paged KV cache.
//
// A row is one query head of one token. Keys are read in spans of SPAN tokens at absolute
// positions. Each row's scores, weights and weighted values are computed span by span
// (vector_attention.h, amx_attention.h), and the spans are merged in order (online_softmax.h). So a
// row's bits depend on its query and its sequence alone. Threads share the work as blocks of rows
// with the same KV head. Where blocks are too few, a block's spans are split into parts
// (attention_plan.h).
#pragma once

#include <optional>

#include "attention/amx_attention.h"
#include "attention/attention_plan.h"
#include "attention/vector_attention.h"
#include "dispatch/kernel_table.h"
#include "isa/partial_vectors.h"
#include "matmul/operand_layout.h"

namespace TACO_ISA {

#ifdef TACO_HAS_TILES
template <class Source>
using AttentionOf = std::conditional_t<std::is_same_v<Source, float>, VectorAttention<Source>,
                                       AmxAttention<Source>>;
#else
template <class Source>
using AttentionOf = VectorAttention<Source>;
#endif

// Calls body(an element of the cache's type).
template <class Body>
inline auto with_cache_type(KVType type, Body body) {
    if (type == KVType::f32) return body(float());
    if (type == KVType::bf16) return body(bf16());
    if (type == KVType::e4m3) return body(e4m3());
    if (type == KVType::e5m2) return body(e5m2());
    return body(int8_t());
}

// Attention::workspace: the scratch memory of each thread, then the span sums of query blocks that
// were split.
template <class BlockAttention>
class AttentionWorkspace {
    using Scratch = typename BlockAttention::Scratch;

public:
    AttentionWorkspace(const Attention& attention, const AttentionPlan& plan, int num_threads)
        : kv_(attention.cache.entry(attention.entry)), rows_(plan.max_rows()) {
        Arena one(nullptr);
        Scratch(one, kv_, rows_);
        scratch_bytes_ = one.used();

        Arena all(attention.workspace);
        threads_ = static_cast<char*>(all.take_bytes(num_threads * scratch_bytes_));
        records_ = static_cast<char*>(all.take_bytes(plan.record_bytes()));
        bytes_ = all.used();
    }

    int64_t bytes() const { return bytes_; }
    Scratch scratch(int thread) const {
        Arena arena(threads_ + thread * scratch_bytes_);
        return Scratch(arena, kv_, rows_);
    }
    // Where the sums of a span of a part are kept.
    float* record(const AttentionItem& part, int64_t span) const {
        return reinterpret_cast<float*>(records_ + part.record_offset +
                                        (span - part.spans.begin) * part.record_bytes);
    }

private:
    const EntryKV kv_;
    const int64_t rows_;
    int64_t scratch_bytes_, bytes_;
    char *threads_, *records_;
};

inline int64_t attention_workspace(const Attention& attention, int num_threads) {
    const AttentionPlan plan(attention, num_threads);
    return with_cache_type(attention.cache.type, [&](auto source) {
        using Workspace = AttentionWorkspace<AttentionOf<decltype(source)>>;
        return Workspace(attention, plan, num_threads).bytes();
    });
}

// Calls take(first number, F32, count) for sixteen numbers of a row's result at a time.
template <class Take>
inline void for_result_lanes(const float* values, F32 factor, int64_t dim, Take take) {
    for (int64_t d = 0; d < dim; d += LANES) {
        take(d, mul(load(values + d), factor), std::min<int64_t>(LANES, dim - d));
    }
}

// Divides a query block's rows by their weights and writes them to the output.
inline void write_block(const Attention& attention, const QueryBlock& block,
                        const SpanSums& total) {
    const EntryKV entry = attention.cache.entry(attention.entry);
    const int64_t dim = entry.value_dim, group = attention.num_heads / entry.num_heads;
    for (int64_t r = 0; r < total.rows; ++r) {
        const int64_t token = block.first_token + r / group,
                      head = block.kv_head * group + r % group;
        const float* values = total.values + r * total.padded_dim;
        float weight = total.weight[r];
        if (attention.sinks) {
            weight += reduce_max(exp2(set1(attention.sinks[head] * LOG2_E - total.best[r])));
        }
        const F32 factor = set1(entry.value_factor() / weight);
        if (attention.out_is_operand) {
            auto* out = reinterpret_cast<Bf16Operand*>(
                static_cast<char*>(attention.out) +
                operand_offset(DType::bf16, token, attention.out_stride, 0));
            for_result_lanes(values, factor, dim, [&](int64_t d, F32 v, int64_t count) {
                store_bf16_operands(out, head * dim + d, v, count);
            });
        } else {
            float* out =
                static_cast<float*>(attention.out) + token * attention.out_stride + head * dim;
            for_result_lanes(values, factor, dim, [&](int64_t d, F32 v, int64_t count) {
                store_lanes(out + d, v, count);
            });
        }
    }
}

template <class BlockAttention>
inline void attend_item(const Attention& attention, const AttentionItem& item,
                        const ItemNeighbors& neighbors,
                        const AttentionWorkspace<BlockAttention>& workspace,
                        const typename BlockAttention::Scratch& scratch) {
    BlockAttention block(attention, item.block, neighbors, scratch);
    if (item.is_part) {
        block.attend_spans(item.spans, [&](int64_t span) { return workspace.record(item, span); });
    } else {
        block.attend_spans(item.spans);
        write_block(attention, item.block, block.total());
    }
}

// Merges the spans of a query block that was split into parts.
template <class BlockAttention>
inline void merge_parts(const Attention& attention, const AttentionItem& item,
                        const AttentionWorkspace<BlockAttention>& workspace,
                        const typename BlockAttention::Scratch& scratch) {
    const EntryKV kv = attention.cache.entry(attention.entry);
    const int64_t rows = item.block.num_tokens * (attention.num_heads / kv.num_heads);
    const int64_t dim = kv.padded_value_dim();
    const SpanSums total(scratch.total, rows, dim);
    for (int64_t s = item.spans.begin; s < item.spans.end; ++s) {
        merge(total, SpanSums(workspace.record(item, s), rows, dim), s == item.spans.begin);
    }
    write_block(attention, item.block, total);
}

template <class BlockAttention>
inline void attend_blocks(Thread& thread, const Attention& attention) {
    const AttentionPlan plan(attention, thread.count());
    const AttentionWorkspace<BlockAttention> workspace(attention, plan, thread.count());
    const auto scratch = workspace.scratch(thread.index());

    BlockAttention::begin_thread();
    PlanWalk items(plan);
    int64_t prefetched = -1;
    thread.share_ahead(plan.num_items(), [&](int64_t index, int64_t next_index) {
        const AttentionItem item = items.item(index);
        std::optional<AttentionItem> next;
        if (next_index >= 0) next = items.item(next_index);
        const ItemNeighbors neighbors = {index == prefetched, next ? &*next : nullptr};
        attend_item(attention, item, neighbors, workspace, scratch);
        prefetched = next_index;
    });
    if (plan.num_split_blocks() == 0) return;
    PlanWalk blocks(plan);
    thread.share(plan.num_split_blocks(), 1, [&](int64_t begin, int64_t) {
        merge_parts(attention, blocks.split_block(begin), workspace, scratch);
    });
}

inline void attend(Thread& thread, const Attention& attention) {
    if (attention.batch.num_seqs == 0) return thread.barrier();
    with_cache_type(attention.cache.type, [&](auto source) {
        attend_blocks<AttentionOf<decltype(source)>>(thread, attention);
    });
}

}  // namespace TACO_ISA
