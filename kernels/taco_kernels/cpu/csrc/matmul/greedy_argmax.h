// Greedy sampling inside the product of the logits: the column with the greatest value of each row,
// and its log probability, without storing the product.
#pragma once

#include "matmul/argmax_rows.h"
#include "matmul/argmax_tiles.h"

namespace TACO_ISA {

// Ranks the columns of all rows, block by block.
inline void rank_columns(Thread& thread, const Rows& rows, const Matrix& matrix,
                         const Argmax& wanted) {
    const Blocking blocking(matrix, rows.count, matrix.num_panels(), thread.count(),
                            FinishedBy::block);
    const auto finish = [&](const Block& block, void* sums) {
        rank_rows(rows, matrix, wanted, block, sums);
    };
#ifdef TACO_HAS_TILES
    if (streams_argmax(rows, matrix, wanted)) {
        if (matrix.type == DType::i8) {
            return stream_argmax<Int8Tiles>(thread, rows, matrix, wanted, blocking, finish);
        }
        return stream_argmax<Bf16Tiles>(thread, rows, matrix, wanted, blocking, finish);
    }
#endif
    share_blocks(thread, matrix, blocking, wanted.masks, [&](int64_t index, const void* next) {
        run_block(rows, matrix, blocking, index, next, finish);
    });
}

inline void multiply_argmax(Thread& thread, const Rows& rows, const Matrix& matrix,
                            const Argmax& wanted) {
    if (rows.count == 0) return thread.barrier();
    if (thread.index() == 0) {
        for (int64_t row = 0; row < rows.count; ++row) wanted.ranks[row].store(0);
    }
    thread.barrier();
    rank_columns(thread, rows, matrix, wanted);
    const int64_t num_sums = num_partial_sums(matrix.n);
    thread.share(rows.count, 1, [&](int64_t row, int64_t) {
        const uint64_t rank = wanted.ranks[row].load();
        wanted.columns[row] = column_of(rank);
        if (wanted.logprobs) {
            const PartialSum* sums = wanted.sums + row * num_sums;
            wanted.logprobs[row] = float(0.0 - log_sum(sums, num_sums, value_of(rank)));
        }
    });
}

}  // namespace TACO_ISA
