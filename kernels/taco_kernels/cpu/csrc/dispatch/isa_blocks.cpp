#include "matmul/block_products.h"
#include "matmul/codes/grouped_tiles.h"
#include "matmul/codes/grouped_vectors.h"
#include "matmul/codes/multiply_codes.h"
#include "matmul/epilogue.h"
#include "matmul/multiply_tiles.h"
#include "matmul/multiply_vectors.h"

namespace TACO_ISA {

namespace {

// Sums of a block that segments of k keep at once: one of each level of their tree, and the last.
constexpr int64_t MAX_KEPT_SUMS = 4;
static_assert(MAX_SEGMENTS == 1 << (MAX_KEPT_SUMS - 1));

// Computes the sums of one block, of which k has one segment.
void sum_block(DType type, const Block& block, void* sums) {
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
__attribute__((noinline)) void sum_segments(const Matrix& matrix, const Block& block, float* sums) {
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

}  // namespace

void* sums_of(const Matrix& matrix, const Block& block, void* memory) {
    if (is_grouped_int8(matrix)) return sum_grouped(matrix, block);
    if (matrix.segments > 1) {
        sum_segments(matrix, block, static_cast<float*>(memory));
    } else {
        sum_block(matrix.type, block, memory);
    }
    return memory;
}

void multiply_block(const Product& product, const Blocking& blocking, int64_t index,
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

}  // namespace TACO_ISA
