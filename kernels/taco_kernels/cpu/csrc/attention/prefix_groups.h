// Sequences of a decode step whose contexts begin with the same blocks of the KV cache.
//
// The kernels read shared blocks once, and multiply them with the queries of all sequences of a
// group (cascade inference: Ye et al. 2024, "Cascade Inference: Memory Bandwidth Efficient Shared
// Prefix Batch Decoding"; Juravsky et al. 2024, "Hydragen"). Sums over a span do not depend on the
// rows beside a row, and spans are merged in order, so no bit changes.
#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "attention/kv_cache.h"

// Finds the group of each sequence. A sequence is alone unless it has one query token and shares
// whole spans with its neighbours. The shared spans end before the query token of each. Returns no
// groups, with which nothing is shared, if memory is short.
inline std::vector<PrefixGroup> find_prefix_groups(const Batch& batch, int64_t block_size) {
    std::vector<PrefixGroup> groups;
    try {
        groups.reserve(size_t(batch.num_seqs));
    } catch (const std::bad_alloc&) {
        return groups;
    }
    if (!batch.block_tables || block_size == 0 || SPAN % block_size != 0) return groups;
    const int64_t blocks_per_span = SPAN / block_size;
    const auto is_decode = [&](int64_t s) {
        return s < batch.num_seqs && batch.query_start[s + 1] - batch.query_start[s] == 1;
    };
    // Spans before the query token.
    const auto spans_of = [&](int64_t s) { return (batch.seq_lens[s] - 1) / SPAN; };
    // Spans at the beginning of both, at most `most`.
    const auto common_spans = [&](int64_t s, int64_t other, int64_t most) {
        const int32_t* one = batch.block_tables + s * batch.block_table_stride;
        const int32_t* two = batch.block_tables + other * batch.block_table_stride;
        return (std::mismatch(one, one + most * blocks_per_span, two).first - one) /
               blocks_per_span;
    };
    for (int64_t first = 0; first < batch.num_seqs;) {
        int64_t count = 1, spans = is_decode(first) ? spans_of(first) : 0;
        for (; spans > 0 && is_decode(first + count); ++count) {
            const int64_t most = std::min<int64_t>(spans, spans_of(first + count));
            const int64_t shared = common_spans(first, first + count, most);
            // Reads of spans that are saved with this sequence, and without it.
            if (count * shared <= (count - 1) * spans) break;
            spans = shared;
        }
        if (count == 1) spans = 0;
        for (int64_t i = 0; i < count; ++i) {
            groups.push_back({int32_t(first), int32_t(count), int32_t(spans)});
        }
        first += count;
    }
    return groups;
}
