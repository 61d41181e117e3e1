// Matrix product of rows with a packed matrix.
//
// An output element sums its products in the order of k (of each segment of k: matrix.h), by the
// same instructions, whatever other rows and columns are computed with it. So its bits depend on
// its own row and column alone.
#pragma once

#include <vector>

#include "matmul/encode.h"
#include "matmul/epilogue.h"
#include "matmul/multiply_amx.h"
#include "matmul/multiply_vectors.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

#ifdef TACO_HAS_TILES
constexpr int64_t ROW_UNIT = TILE_BLOCK_ROWS;
#else
constexpr int64_t ROW_UNIT = PASS_ROWS;
#endif
// Rows of a block: as many as stay in the L2 cache for one part of k.
constexpr int64_t BLOCK_ROWS = 96 / ROW_UNIT * ROW_UNIT;
constexpr int64_t MAX_BLOCK_SUMS = 1024;  // vectors, 64 KB on the stack
// Sums of a block that segments of k keep at once: one of each level of their tree, and the last.
constexpr int64_t MAX_KEPT_SUMS = 4;
static_assert(MAX_SEGMENTS == 1 << (MAX_KEPT_SUMS - 1));
// Bytes of weights in a block when there are few rows: enough to hide the overhead of a block, few
// enough that threads end together.
constexpr int64_t BLOCK_BYTES = 256 * 1024;
constexpr int64_t BLOCKS_PER_THREAD = 4;
// Every block begins at a multiple of this many panels, so that few passes have fewer panels than
// they could.
constexpr int64_t BLOCK_PANELS = 4;

// Computes the sums of one block.
inline void sum_block(DType type, const Block& block, void* sums) {
    switch (type) {
        case DType::f32: return sum_on_vectors<F32Step>(block, static_cast<float*>(sums));
#ifdef TACO_HAS_TILES
        case DType::bf16: return sum_on_tiles<Bf16Tiles>(block, static_cast<float*>(sums));
        case DType::i8: return sum_on_tiles<Int8Tiles>(block, static_cast<int32_t*>(sums));
#else
        case DType::bf16: return sum_on_vectors<Bf16Step>(block, static_cast<float*>(sums));
        case DType::i8: return sum_on_vectors<Int8Step>(block, static_cast<int32_t*>(sums));
#endif
    }
}

// As sum_block, segment by segment of k. Never inlined: most products need no stack for it.
__attribute__((noinline)) inline void sum_segments(const Matrix& matrix, const Block& block,
                                                   float* sums) {
    alignas(64) float others[(MAX_KEPT_SUMS - 1) * MAX_BLOCK_SUMS * PANEL];
    const int64_t size = block.rows.size() * block.panels.size() * PANEL;
    const auto kept = [&](int64_t at) { return at == 0 ? sums : others + (at - 1) * size; };
    const int64_t steps = block.steps / matrix.segments;
    const int64_t operands_size = matrix.k / matrix.segments * operand_bytes(matrix.type);
    Block segment = block;
    segment.steps = steps;
    int64_t num_kept = 0;
    for (int64_t index = 0; index < matrix.segments; ++index) {
        const char* end = segment.data + steps * STEP_BYTES;
        segment.next = index + 1 < matrix.segments ? end : block.next;
        sum_block(matrix.type, segment, kept(num_kept));
        // The segment ends as many subtrees of the tree as its index ends with ones.
        for (int64_t ones = index; ones % 2; ones /= 2) {
            --num_kept;
            float* left = kept(num_kept);
            const float* right = kept(num_kept + 1);
            for (int64_t i = 0; i < size; i += PANEL) {
                store(left + i, add(load(left + i), load(right + i)));
            }
        }
        ++num_kept;
        segment.data = end;
        segment.operands = static_cast<const char*>(segment.operands) + operands_size;
    }
}

// Partition of a product into blocks.
struct Blocking {
    int64_t num_rows, rows, num_panels, panels;

    Blocking(const Matrix& matrix, int64_t row_count, int64_t panel_count, int num_threads)
        : num_rows(row_count), num_panels(panel_count) {
        const int64_t row_blocks = ceil_div(num_rows, BLOCK_ROWS);
        rows = std::min(num_rows, round_up(ceil_div(num_rows, row_blocks), ROW_UNIT));
        const int64_t by_bytes = BLOCK_BYTES / matrix.panel_bytes();
        const int64_t by_threads =
            num_panels * this->row_blocks() / (BLOCKS_PER_THREAD * num_threads);
        const int64_t wanted =
            std::min({std::max<int64_t>(by_bytes, 8), by_threads, MAX_BLOCK_SUMS / rows});
        panels = std::max<int64_t>(wanted / BLOCK_PANELS * BLOCK_PANELS, BLOCK_PANELS);
    }

    int64_t row_blocks() const { return ceil_div(num_rows, rows); }
    int64_t count() const { return row_blocks() * ceil_div(num_panels, panels); }
    // Blocks of the same panels are adjacent, so that weights are read from memory once.
    Range row_range(int64_t index) const {
        const int64_t begin = index % row_blocks() * rows;
        return {begin, std::min(begin + rows, num_rows)};
    }
    Range panel_range(int64_t index) const {
        const int64_t begin = index / row_blocks() * panels;
        return {begin, std::min(begin + panels, num_panels)};
    }
};

// Computes one block of a product and calls finish(block, sums). `next` is memory that is likely
// read after it.
template <class Finish>
void run_block(const Rows& rows, const Matrix& matrix, const Blocking& blocking, int64_t index,
               const void* next, Finish finish) {
    alignas(64) char sums[MAX_BLOCK_SUMS * PANEL * 4];
    const int64_t row_bytes = rows.stride * operand_bytes(matrix.type);
    Block block;
    block.rows = blocking.row_range(index);
    block.panels = blocking.panel_range(index);
    block.operands = static_cast<const char*>(rows.data) + block.rows.begin * row_bytes;
    block.operand_stride = rows.stride;
    block.data = static_cast<const char*>(matrix.panel(block.panels.begin));
    block.panel_bytes = matrix.panel_bytes();
    block.steps = block.panel_bytes / STEP_BYTES;
    block.next = static_cast<const char*>(next);
    if (matrix.segments > 1) {
        sum_segments(matrix, block, reinterpret_cast<float*>(sums));
    } else {
        sum_block(matrix.type, block, sums);
    }
    finish(block, static_cast<const void*>(sums));
}

// Computes blocks that cover rows x panels and calls finish(block, sums) for each. Ends with a
// barrier.
template <class Finish>
void share_blocks(Thread& thread, const Rows& rows, const Matrix& matrix, int64_t num_panels,
                  Finish finish) {
    if (rows.count == 0) return thread.barrier();
    const Blocking blocking(matrix, rows.count, num_panels, thread.count());
    thread.share(blocking.count(), 1, [&](int64_t index, int64_t) {
        const int64_t next = std::min(index + thread.count(), blocking.count() - 1);
        run_block(rows, matrix, blocking, index, matrix.panel(blocking.panel_range(next).begin),
                  finish);
    });
}

// As share_blocks, but skips blocks of which no row may sample a token.
template <class Finish>
void share_allowed_blocks(Thread& thread, const Rows& rows, const Matrix& matrix,
                          const TokenMasks& masks, Finish finish) {
    if (rows.count == 0 || !masks.of_row) {
        return share_blocks(thread, rows, matrix, matrix.num_panels(), finish);
    }
    static_assert(BLOCK_PANELS % 2 == 0);  // blocks begin with a word of a mask
    const Blocking blocking(matrix, rows.count, matrix.num_panels(), thread.count());
    std::vector<int64_t> allowed;  // every thread finds the same
    for (int64_t index = 0; index < blocking.count(); ++index) {
        if (allows_any(masks, blocking.row_range(index), blocking.panel_range(index))) {
            allowed.push_back(index);
        }
    }
    const int64_t count = int64_t(allowed.size());
    thread.share(count, 1, [&](int64_t place, int64_t) {
        const int64_t next = allowed[size_t(std::min(place + thread.count(), count - 1))];
        run_block(rows, matrix, blocking, allowed[size_t(place)],
                  matrix.panel(blocking.panel_range(next).begin), finish);
    });
}

inline void multiply(Thread& thread, const Product& product) {
    const Matrix& matrix = product.matrix;
    const auto finish = [&](const Block& block, const void* sums) {
        finish_block(product, block, sums);
    };
    if (product.masks.of_row) {
        return share_allowed_blocks(thread, product.rows, matrix, product.masks, finish);
    }
    const int64_t panels =
        product.epilogue == Epilogue::gate_mul ? matrix.num_pair_panels() : matrix.num_panels();
    share_blocks(thread, product.rows, matrix, panels, finish);
}

}  // namespace TACO_ISA
