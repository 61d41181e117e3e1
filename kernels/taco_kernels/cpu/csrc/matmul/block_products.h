// The products of one block. dispatch/isa_blocks.cpp defines them: their kernels take long to
// compile, and products of matrices, of heads and of experts use them.
#pragma once

#include "matmul/blocking.h"
#include "matmul/matrix.h"
#include "matmul/operand_layout.h"

namespace TACO_ISA {

// Computes the sums of a block in `memory`, or in the thread's memory where they need more. Returns
// the sums.
void* sums_of(const Matrix& matrix, const Block& block, void* memory);

// Computes one block of a product that is finished by quads. `next` is memory that is likely read
// after it.
void multiply_block(const Product& product, const Blocking& blocking, int64_t index,
                    const void* next);

// One block of a product. `next` is memory that is likely read after it.
inline Block block_of(const Rows& rows, const Matrix& matrix, const Blocking& blocking,
                      int64_t index, const void* next) {
    Block block;
    block.rows = blocking.row_range(index);
    block.panels = blocking.panel_range(index);
    block.operands = static_cast<const char*>(rows.data) +
                     operand_offset(matrix.type, block.rows.begin, rows.stride, 0);
    block.operand_stride = rows.stride;
    if (matrix.parts) {
        block.codes = &matrix;
        block.data = nullptr;
    } else {
        block.data = static_cast<const char*>(matrix.panel(block.panels.begin));
    }
    block.panel_bytes = matrix.panel_bytes();
    block.steps = block.panel_bytes / STEP_BYTES;
    block.next = static_cast<const char*>(next);
    block.is_cached = matrix.is_cached;
    return block;
}

// Computes one block of a blocking that is finished by blocks, and calls finish(block, sums).
template <class Finish>
void run_block(const Rows& rows, const Matrix& matrix, const Blocking& blocking, int64_t index,
               const void* next, Finish finish) {
    const Block block = block_of(rows, matrix, blocking, index, next);
    alignas(64) char memory[MAX_BLOCK_SUMS * PANEL * 4];
    finish(block, sums_of(matrix, block, memory));
}

}  // namespace TACO_ISA
