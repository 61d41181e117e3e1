// Matrix product of rows with a packed matrix.
//
// An output element sums its products in the order of k (of each segment of k: matrix.h), by the
// same instructions, whatever other rows and columns are computed with it. So its bits depend on
// its own row and column alone.
#pragma once

#include "matmul/block_products.h"
#include "matmul/encode.h"
#include "matmul/epilogue.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// Calls body(index, next) for the blocks of which any row may sample a token, as Thread::share.
// `next` is memory that the thread likely reads after the block. Ends with a barrier.
template <class Body>
void share_blocks(Thread& thread, const Matrix& matrix, const Blocking& blocking,
                  const TokenMasks& masks, Body body) {
    static_assert(BLOCK_PANELS % 2 == 0);  // blocks begin with a word of a mask
    thread.share(blocking.count(), 1, [&](int64_t index, int64_t) {
        if (masks.of_row &&
            !allows_any(masks, blocking.row_range(index), blocking.panel_range(index))) {
            return;
        }
        const int64_t next = std::min(index + thread.chunk_step(), blocking.count() - 1);
        body(index, matrix.panel(blocking.panel_range(next).begin));
    });
}

inline void multiply(Thread& thread, const Product& product) {
    const Matrix& matrix = product.matrix;
    if (product.rows.count == 0) return thread.barrier();
    const int64_t panels =
        product.epilogue == Epilogue::gate_mul ? matrix.num_pair_panels() : matrix.num_panels();
    const Blocking blocking(matrix, product.rows.count, panels, thread.count(), FinishedBy::quad);
    share_blocks(thread, matrix, blocking, product.masks, [&](int64_t index, const void* next) {
        multiply_block(product, blocking, index, next);
    });
}

}  // namespace TACO_ISA
