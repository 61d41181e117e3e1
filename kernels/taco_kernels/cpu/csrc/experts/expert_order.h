// The order of the grouped products: the pairs (row, rank of a chosen expert) sorted by expert.
#pragma once

#include <algorithm>
#include <numeric>

#include "experts/expert_args.h"
#include "matmul/multiply.h"
#include "runtime/arena.h"

namespace TACO_ISA {

// What the threads share of the grouped products of experts, or of adapters. A pair is numbered
// row * top_k + rank.
struct ExpertOrder {
    int64_t* num_hit;  // experts that at least one row has chosen; the next arrays are of these
    int32_t* experts;  // [num_hit], ascending
    int32_t* starts;   // [num_hit + 1], where an expert's pairs begin in `pairs`
    // [num_hit + 1], where an expert's blocks begin in the shared loop of each grouped product
    int64_t *first_blocks, *second_blocks;
    int32_t* row_starts;  // [num_hit], an expert's first row of operands, which begins a tile
    int32_t* pairs;       // [num_pairs], sorted by expert, then by number
    int32_t* rows;        // [num_pairs], of the operands of these pairs
    int32_t* next_pair;   // [num_experts], of the sort

    ExpertOrder(Arena& arena, int64_t num_experts, int64_t num_pairs) {
        const int64_t most = std::min(num_experts, num_pairs);
        num_hit = arena.take<int64_t>(1);
        experts = arena.take<int32_t>(most);
        starts = arena.take<int32_t>(most + 1);
        first_blocks = arena.take<int64_t>(most + 1);
        second_blocks = arena.take<int64_t>(most + 1);
        row_starts = arena.take<int32_t>(most);
        pairs = arena.take<int32_t>(num_pairs);
        rows = arena.take<int32_t>(num_pairs);
        next_pair = arena.take<int32_t>(num_experts);
    }

    int64_t num_pairs() const { return starts[*num_hit]; }
    int64_t num_rows(int64_t hit) const { return starts[hit + 1] - starts[hit]; }

    // Rows of operands that the pairs take at most: each expert's begin with a tile.
    static int64_t most_rows(DType type, int64_t num_experts, int64_t num_pairs) {
        const int64_t gap = operand_rows(type, 1) - 1;
        return num_pairs + gap * std::min(num_experts, num_pairs);
    }
};

// Fills the order but for its blocks with a counting sort, on one thread. id_of(row, rank): of the
// expert, or negative for a pair that takes no part.
template <class IdOf>
void sort_pairs(DType type, int64_t num_experts, int64_t count, int64_t top_k,
                const ExpertOrder& order, IdOf id_of) {
    const auto for_pairs = [&](auto body) {
        for (int64_t row = 0; row < count; ++row) {
            for (int64_t rank = 0; rank < top_k; ++rank) {
                const int32_t id = id_of(row, rank);
                if (id >= 0) body(id, int32_t(row * top_k + rank));
            }
        }
    };
    int32_t* sizes = order.next_pair;
    std::fill_n(sizes, num_experts, 0);
    for_pairs([&](int32_t expert, int32_t) { ++sizes[expert]; });

    int64_t hit = 0;
    int32_t begin = 0;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
        if (sizes[expert] == 0) continue;
        order.experts[hit] = int32_t(expert);
        order.starts[hit++] = begin;
        begin += sizes[expert];
    }
    order.starts[hit] = begin;
    *order.num_hit = hit;

    int64_t row_start = 0;
    for (int64_t i = 0; i < hit; ++i) {
        order.next_pair[order.experts[i]] = order.starts[i];
        order.row_starts[i] = int32_t(row_start);
        std::iota(order.rows + order.starts[i], order.rows + order.starts[i + 1],
                  order.row_starts[i]);
        row_start += operand_rows(type, order.num_rows(i));
    }
    for_pairs([&](int32_t expert, int32_t pair) { order.pairs[order.next_pair[expert]++] = pair; });
}

// Fills the blocks of one grouped product, after `sort_pairs`. blocking_of(hit): of a hit expert.
template <class BlockingOf>
void count_blocks(const ExpertOrder& order, int64_t* first_blocks, BlockingOf blocking_of) {
    first_blocks[0] = 0;
    for (int64_t hit = 0; hit < *order.num_hit; ++hit) {
        first_blocks[hit + 1] = first_blocks[hit] + blocking_of(hit).count();
    }
}

// One product of each hit expert's matrix with its part of `rows`: threads share the blocks of all
// in one loop. Calls body(matrix, the expert's rows, index of the hit expert, blocking, block,
// memory that is likely read next).
template <class BlockingOf, class Body>
void share_experts(Thread& thread, const ExpertOrder& order, const Matrix* matrices,
                   const int64_t* first_blocks, const Rows& rows, BlockingOf blocking_of,
                   Body body) {
    const int64_t num_hit = *order.num_hit, num_blocks = first_blocks[num_hit];
    const auto hit_of = [&](int64_t index) {
        return std::upper_bound(first_blocks, first_blocks + num_hit, index) - first_blocks - 1;
    };
    const auto matrix_of = [&](int64_t hit) -> const Matrix& {
        return matrices[order.experts[hit]];
    };
    thread.share(num_blocks, 1, [&](int64_t index, int64_t) {
        const int64_t hit = hit_of(index);
        const int64_t next = std::min(index + thread.chunk_step(), num_blocks - 1);
        const int64_t next_hit = hit_of(next);
        const Range next_panels = blocking_of(next_hit).panel_range(next - first_blocks[next_hit]);
        const Matrix& matrix = matrix_of(hit);
        const int64_t first = order.row_starts[hit];
        const Rows own = {order.num_rows(hit),
                          static_cast<const char*>(rows.data) +
                              operand_offset(matrix.type, first, rows.stride, 0),
                          rows.stride, rows.scales ? rows.scales + first : nullptr};
        body(matrix, own, hit, blocking_of(hit), index - first_blocks[hit],
             matrix_of(next_hit).panel(next_panels.begin));
    });
}

}  // namespace TACO_ISA
