// Causal attention of a step's queries over the paged KV cache.
//
// A row is one query head of one token. Keys are read in spans of SPAN tokens at absolute
// positions. Each row's scores, weights and weighted values are computed span by span
// (vector_attention.h, amx_attention.h), and the spans are merged in order (online_softmax.h). So a
// row's bits depend on its query and its sequence alone. Threads share the work as blocks of rows
// with the same KV head. Where blocks are too few, a block's spans are split into parts
// (attention_plan.h). Attention over a shared prefix runs first, once for all of its sequences
// (prefix_plan.h).
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
        : kv_(attention.cache.entry(attention.entry)),
          num_seqs_(attention.batch.num_seqs),
          group_(plan.group()),
          rows_(plan.max_rows()) {
        Arena one(nullptr);
        Scratch(one, kv_, rows_);
        scratch_bytes_ = one.used();

        Arena all(attention.workspace);
        threads_ = static_cast<char*>(all.take_bytes(num_threads * scratch_bytes_));
        records_ = static_cast<char*>(all.take_bytes(plan.record_bytes()));
        if (num_seqs_ > 1) {
            prefixes_ = static_cast<char*>(
                all.take_bytes(kv_.num_heads * num_seqs_ * prefix_sequence_bytes()));
        }
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

    // The sums of a block over a prefix.
    SpanSums prefix(const QueryBlock& block) const {
        const int64_t before = block.kv_head * num_seqs_ + block.sequence;
        return SpanSums(reinterpret_cast<float*>(prefixes_ + before * prefix_sequence_bytes()),
                        block.num_tokens * group_, kv_.padded_value_dim());
    }

private:
    // Upper bound of the bytes that a prefix block needs for each of its sequences.
    int64_t prefix_sequence_bytes() const {
        const int64_t floats = SpanSums::num_floats(group_, kv_.padded_value_dim());
        return round_up(floats * int64_t(sizeof(float)), 64);
    }

    const EntryKV kv_;
    const int64_t num_seqs_, group_, rows_;
    int64_t scratch_bytes_, bytes_;
    char *threads_, *records_, *prefixes_ = nullptr;
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
            // A sink of 2^126 leaves nothing of the values; `exp2` overflows beyond.
            const float above = attention.sinks[head] * LOG2_E - total.best[r];
            weight += reduce_max(exp2(set1(std::min(above, 126.0f))));
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

// One thread's attention of a step. `BlockAttention`: VectorAttention or AmxAttention.
template <class BlockAttention>
class ThreadAttention {
public:
    ThreadAttention(Thread& thread, const Attention& attention)
        : thread_(thread),
          attention_(attention),
          plan_(attention, thread.count()),
          workspace_(attention, plan_, thread.count()),
          scratch_(workspace_.scratch(thread.index())) {}

    void run() {
        if (plan_.prefixes().num_items() > 0) {
            share_items(plan_.prefixes().num_items(), PrefixWalk(plan_.prefixes()),
                        [&](const AttentionItem& item, const ItemNeighbors& neighbors) {
                            attend_prefix(item, neighbors);
                        });
        }
        share_items(plan_.num_items(), PlanWalk(plan_),
                    [&](const AttentionItem& item, const ItemNeighbors& neighbors) {
                        attend_item(item, neighbors);
                    });
        if (plan_.num_split_blocks() == 0) return;
        PlanWalk blocks(plan_);
        thread_.share(plan_.num_split_blocks(), 1,
                      [&](int64_t begin, int64_t) { merge_parts(blocks.split_block(begin)); });
    }

private:
    // Calls attend(item, neighbors). Ends with a barrier.
    template <class Walk, class Attend>
    void share_items(int64_t count, Walk items, Attend attend) {
        int64_t prefetched = -1;
        thread_.share_ahead(count, [&](int64_t index, int64_t next_index) {
            const AttentionItem item = items.item(index);
            std::optional<AttentionItem> next;
            if (next_index >= 0) next = items.item(next_index);
            attend(item, ItemNeighbors{index == prefetched, next ? &*next : nullptr});
            prefetched = next_index;
        });
    }

    void attend_prefix(const AttentionItem& item, const ItemNeighbors& neighbors) const {
        BlockAttention block(attention_, item.block, neighbors, scratch_);
        block.attend_spans(item.spans, false);
        workspace_.prefix(item.block).copy_rows(block.total(), 0);
    }

    void attend_item(const AttentionItem& item, const ItemNeighbors& neighbors) const {
        BlockAttention block(attention_, item.block, neighbors, scratch_);
        if (item.is_part) {
            block.record_spans(item.spans,
                               [&](int64_t span) { return workspace_.record(item, span); });
        } else {
            block.attend_spans(item.spans, load_prefix(item.block, block.total()));
            write_block(attention_, item.block, block.total());
        }
    }

    // Merges the spans of a query block that was split into parts.
    void merge_parts(const AttentionItem& item) const {
        const EntryKV kv = attention_.cache.entry(attention_.entry);
        const int64_t rows = item.block.num_tokens * plan_.group(), dim = kv.padded_value_dim();
        const SpanSums total(scratch_.total, rows, dim);
        const bool continues = load_prefix(item.block, total);
        for (int64_t s = item.spans.begin; s < item.spans.end; ++s) {
            merge(total, SpanSums(workspace_.record(item, s), rows, dim),
                  s == item.spans.begin && !continues);
        }
        write_block(attention_, item.block, total);
    }

    // Copies the sums over the prefix of a block's sequence to `total`, if it shares one; returns
    // whether it does.
    bool load_prefix(const QueryBlock& block, SpanSums total) const {
        const PrefixGroup group = plan_.prefixes().group_of(block.sequence);
        if (group.spans == 0) return false;
        const QueryBlock prefix = plan_.prefixes().block_of(group, block.sequence, block.kv_head);
        total.copy_rows(workspace_.prefix(prefix),
                        (block.sequence - prefix.sequence) * plan_.group());
        return true;
    }

    Thread& thread_;
    const Attention& attention_;
    const AttentionPlan plan_;
    const AttentionWorkspace<BlockAttention> workspace_;
    const typename BlockAttention::Scratch scratch_;
};

inline void attend(Thread& thread, const Attention& attention) {
    if (attention.batch.num_seqs == 0) return thread.barrier();
    with_cache_type(attention.cache.type, [&](auto source) {
        ThreadAttention<AttentionOf<decltype(source)>>(thread, attention).run();
    });
}

}  // namespace TACO_ISA
