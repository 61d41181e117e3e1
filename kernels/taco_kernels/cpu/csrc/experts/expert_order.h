// The order of the grouped products: the pairs (row, rank of a chosen expert) sorted by expert.
#pragma once

#include <algorithm>
#include <numeric>

#include "experts/expert_args.h"
#include "matmul/multiply.h"
#include "runtime/arena.h"

namespace TACO_ISA {

// What the threads share of one ExpertProduct. A pair is numbered row * top_k + rank.
struct ExpertOrder {
    int64_t* num_hit;  // experts that at least one row has chosen; the next arrays are of these
    int32_t* experts;  // [num_hit], ascending
    int32_t* starts;   // [num_hit + 1], where an expert's pairs begin in `pairs`
    // [num_hit + 1], where an expert's blocks begin in the shared loop of each grouped product
    int64_t *gate_up_blocks, *down_blocks;
    int32_t* row_starts;  // [num_hit], an expert's first row of operands, which begins a tile
    int32_t* pairs;       // [num_pairs], sorted by expert, then by number
    int32_t* rows;        // [num_pairs], of the operands of these pairs
    int32_t* next_pair;   // [num_experts], of the sort

    ExpertOrder(Arena& arena, int64_t num_experts, int64_t num_pairs) {
        const int64_t most = std::min(num_experts, num_pairs);
        num_hit = arena.take<int64_t>(1);
        experts = arena.take<int32_t>(most);
        starts = arena.take<int32_t>(most + 1);
        gate_up_blocks = arena.take<int64_t>(most + 1);
        down_blocks = arena.take<int64_t>(most + 1);
        row_starts = arena.take<int32_t>(most);
        pairs = arena.take<int32_t>(num_pairs);
        rows = arena.take<int32_t>(num_pairs);
        next_pair = arena.take<int32_t>(num_experts);
    }

    int64_t num_rows(int64_t hit) const { return starts[hit + 1] - starts[hit]; }

    // Rows of operands that the pairs take at most: each expert's begin with a tile.
    static int64_t most_rows(DType type, int64_t num_experts, int64_t num_pairs) {
        const int64_t gap = operand_rows(type, 1) - 1;
        return num_pairs + gap * std::min(num_experts, num_pairs);
    }
};

// The blocks of one expert's product. Threads share the blocks of all hit experts, so those of one
// expert need not keep all threads busy.
inline Blocking expert_blocking(const Matrix& matrix, int64_t num_panels, int64_t num_rows,
                                int64_t num_hit, int num_threads, FinishedBy finished_by) {
    return Blocking(matrix, num_rows, num_panels, int(ceil_div(num_threads, num_hit)), finished_by);
}

// Fills the order with a counting sort, on one thread.
inline void sort_pairs(const ExpertProduct& product, int num_threads, const ExpertOrder& order) {
    const int64_t count = product.rows.count, top_k = product.top_k;
    const auto for_pairs = [&](auto body) {
        for (int64_t row = 0; row < count; ++row) {
            const int32_t* ids = product.ids + row * product.ids_stride;
            for (int64_t rank = 0; rank < top_k; ++rank) {
                body(ids[rank], int32_t(row * top_k + rank));
            }
        }
    };
    int32_t* sizes = order.next_pair;
    std::fill_n(sizes, product.num_experts, 0);
    for_pairs([&](int32_t expert, int32_t) { ++sizes[expert]; });

    int64_t hit = 0;
    int32_t begin = 0;
    for (int64_t expert = 0; expert < product.num_experts; ++expert) {
        if (sizes[expert] == 0) continue;
        order.experts[hit] = int32_t(expert);
        order.starts[hit++] = begin;
        begin += sizes[expert];
    }
    order.starts[hit] = begin;
    *order.num_hit = hit;

    order.gate_up_blocks[0] = order.down_blocks[0] = 0;
    const Matrix &gate_up = *product.gate_up, &down = *product.down;
    int64_t row_start = 0;
    for (int64_t i = 0; i < hit; ++i) {
        const auto num_blocks = [&](const Matrix& matrix, int64_t num_panels,
                                    FinishedBy finished_by) {
            return expert_blocking(matrix, num_panels, order.num_rows(i), hit, num_threads,
                                   finished_by)
                .count();
        };
        order.gate_up_blocks[i + 1] =
            order.gate_up_blocks[i] +
            num_blocks(gate_up, gate_up.num_pair_panels(), FinishedBy::quad);
        order.down_blocks[i + 1] =
            order.down_blocks[i] + num_blocks(down, down.num_panels(), FinishedBy::block);
        order.next_pair[order.experts[i]] = order.starts[i];
        order.row_starts[i] = int32_t(row_start);
        std::iota(order.rows + order.starts[i], order.rows + order.starts[i + 1],
                  order.row_starts[i]);
        row_start += operand_rows(gate_up.type, order.num_rows(i));
    }
    for_pairs([&](int32_t expert, int32_t pair) { order.pairs[order.next_pair[expert]++] = pair; });
}

}  // namespace TACO_ISA
