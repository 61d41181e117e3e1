// Matrix product of rows with a packed matrix.
//
// An output element sums its products in the order of k (of each segment of k: matrix.h), by the
// same instructions, whatever other rows and columns are computed with it. So its bits depend on
// its own row and column alone.
#pragma once

#include <vector>

#include "matmul/codes/grouped_tiles.h"
#include "matmul/codes/grouped_vectors.h"
#include "matmul/codes/multiply_codes.h"
#include "matmul/encode.h"
#include "matmul/epilogue.h"
#include "matmul/multiply_tiles.h"
#include "matmul/multiply_vectors.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// Sums of a block that segments of k keep at once: one of each level of their tree, and the last.
constexpr int64_t MAX_KEPT_SUMS = 4;
static_assert(MAX_SEGMENTS == 1 << (MAX_KEPT_SUMS - 1));

// Computes the sums of one block.
inline void sum_block(DType type, const Block& block, void* sums) {
    switch (type) {
        case DType::f32: return sum_on_vectors<F32Step>(block, static_cast<float*>(sums));
#ifdef TACO_HAS_TILES
        case DType::bf16: return sum_on_tiles<Bf16Tiles>(block, static_cast<float*>(sums));
        case DType::i8: return sum_on_tiles<Int8Tiles>(block, static_cast<int32_t*>(sums));
#else
        case DType::bf16:
            if (block.codes) return sum_codes_on_vectors(block, static_cast<float*>(sums));
            return sum_on_vectors<Bf16Step>(block, static_cast<float*>(sums));
        case DType::i8: return sum_on_vectors<Int8Step>(block, static_cast<int32_t*>(sums));
#endif
    }
}

// As sum_block, segment by segment of k. Never inlined: most products need no stack for it.
__attribute__((noinline)) inline void sum_segments(const Matrix& matrix, const Block& block,
                                                   float* sums) {
    alignas(64) float others[(MAX_KEPT_SUMS - 1) * MAX_BLOCK_SUMS * PANEL];
    const int64_t size = block.panels.size() * block.sums_stride();
    const auto kept = [&](int64_t at) { return at == 0 ? sums : others + (at - 1) * size; };
    const int64_t steps = block.steps / matrix.segments;
    const int64_t operands_size =
        operand_offset(matrix.type, 0, block.operand_stride, matrix.k / matrix.segments);
    Block segment = block;
    segment.steps = steps;
    int64_t num_kept = 0;
    for (int64_t index = 0; index < matrix.segments; ++index) {
        const char* end = segment.data + steps * STEP_BYTES;
        segment.next = index + 1 < matrix.segments ? end : block.next;
        segment.first_step = index * steps;
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
    if (is_grouped_int8(matrix)) {
        return finish(block, static_cast<void*>(sum_grouped(matrix, block)));
    }
    alignas(64) char sums[MAX_BLOCK_SUMS * PANEL * 4];
    if (matrix.segments > 1) {
        sum_segments(matrix, block, reinterpret_cast<float*>(sums));
    } else {
        sum_block(matrix.type, block, sums);
    }
    finish(block, static_cast<void*>(sums));
}

// Computes one block of a product that is finished by quads.
inline void multiply_block(const Product& product, const Blocking& blocking, int64_t index,
                           const void* next) {
    const Matrix& matrix = product.matrix;
#ifdef TACO_HAS_TILES
    if (blocking.on_tiles) {
        const Block block = block_of(product.rows, matrix, blocking, index, next);
        if (is_grouped_int8(matrix)) {
            return multiply_grouped_on_tiles(product, block, blocking.range_steps);
        }
        return multiply_on_tiles(product, block, blocking.range_steps);
    }
#endif
    run_block(product.rows, matrix, blocking, index, next,
              [&](const Block& block, void* sums) { finish_block(product, block, sums); });
}

// Calls body(index, next) for the blocks, where `next` is memory that the thread likely reads after
// the block: as Thread::share, and without blocks of which no row may sample a token. Ends with a
// barrier.
template <class Body>
void share_blocks(Thread& thread, const Matrix& matrix, const Blocking& blocking,
                  const TokenMasks& masks, Body body) {
    const auto address = [&](int64_t index) {
        return matrix.panel(blocking.panel_range(index).begin);
    };
    if (!masks.of_row) {
        thread.share(blocking.count(), 1, [&](int64_t index, int64_t) {
            body(index, address(std::min(index + thread.chunk_step(), blocking.count() - 1)));
        });
        return;
    }
    static_assert(BLOCK_PANELS % 2 == 0);  // blocks begin with a word of a mask
    std::vector<int64_t> allowed;          // every thread finds the same
    for (int64_t index = 0; index < blocking.count(); ++index) {
        if (allows_any(masks, blocking.row_range(index), blocking.panel_range(index))) {
            allowed.push_back(index);
        }
    }
    const int64_t count = int64_t(allowed.size());
    thread.share(count, 1, [&](int64_t place, int64_t) {
        const int64_t next = std::min(place + thread.chunk_step(), count - 1);
        body(allowed[size_t(place)], address(allowed[size_t(next)]));
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
