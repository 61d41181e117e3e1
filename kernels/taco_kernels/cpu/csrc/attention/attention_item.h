// Work items of attention.
#pragma once

#include <cstdint>

namespace TACO_ISA {

// Approximate rows of a query block: a span's keys and values are read, and on AMX copied, once for
// all of them. A row is one query head of one token; the heads that share a KV head are adjacent.
constexpr int64_t MIN_BLOCK_ROWS = 64, MAX_BLOCK_ROWS = 256;

// Queries that attend to one KV head together: of adjacent tokens of one sequence. Or, with
// `is_prefix`, one query of each of `num_tokens` sequences, over the prefix that they share; there
// is no window then, so all of them see the whole prefix.
struct QueryBlock {
    int64_t sequence;  // of a prefix, the first one
    int64_t kv_head;
    int64_t first_token;     // of the step
    int64_t first_position;  // of the first token in its sequence; 0 of a prefix
    int64_t end_position;    // after the last token that any of the queries sees
    int64_t num_tokens;
    bool is_prefix;
};

// Spans [begin, end).
struct SpanRange {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
};

// One work item: a query block over one part of the spans that its tokens see.
struct AttentionItem {
    QueryBlock block;
    SpanRange spans;
    // The block was split. If not, the item completes its rows, or leaves sums over a prefix in the
    // workspace.
    bool is_part;
    // Of a part: where the sums of its first span are kept, and how far those of the next one are.
    int64_t record_offset, record_bytes;
};

// What a thread does before and after an item.
struct ItemNeighbors {
    bool is_prefetched;         // keys of its first span (on AMX values too), by the item before
    const AttentionItem* next;  // null: unknown
};

}  // namespace TACO_ISA
