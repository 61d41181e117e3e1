// A separate product for each head of some rows, as the absorbed products of multi-head latent
// attention: all heads share one loop, so a head need not keep all threads busy.
//
// The products are those of multiply.h: an output element's bits depend on its own row and head
// alone.
#pragma once

#include "matmul/multiply.h"

namespace TACO_ISA {

// Bytes from the first head's operands to those of another.
inline int64_t head_offset(const HeadProduct& product, int64_t head) {
    const DType type = product.matrix.type;
    return operand_offset(type, head * operand_rows(type, product.count),
                          padded_k(type, product.matrix.k), 0);
}

// The rows of one head as operands.
inline Rows head_rows(const HeadProduct& product, int64_t head) {
    const Matrix& matrix = product.matrix;
    if (matrix.type == DType::f32) {
        return {product.count, product.x + head * product.x_head_stride, product.x_stride, nullptr};
    }
    const int64_t stride = padded_k(matrix.type, matrix.k);
    return {product.count, static_cast<const char*>(product.operands) + head_offset(product, head),
            stride, product.scales ? product.scales + head * product.count : nullptr};
}

// The matrix of one head; each begins with a whole panel.
inline Matrix head_matrix(const HeadProduct& product, int64_t head) {
    Matrix matrix = product.matrix;
    const int64_t first = head * matrix.num_panels();
    matrix.data = matrix.panel(first);
    if (matrix.scales) matrix.scales += first * PANEL;
    if (matrix.column_sums) matrix.column_sums += first * PANEL;
    return matrix;
}

inline void encode_heads(Thread& thread, const HeadProduct& product) {
    const Matrix& matrix = product.matrix;
    const int64_t stride = padded_k(matrix.type, matrix.k);
    thread.share(product.num_heads * product.count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t head = i / product.count, row = i % product.count;
            encode_row(matrix.type, matrix.k,
                       product.x + row * product.x_stride + head * product.x_head_stride,
                       static_cast<char*>(product.operands) + head_offset(product, head) +
                           operand_offset(matrix.type, row, stride, 0),
                       product.scales ? product.scales + i : nullptr);
        }
    });
}

inline void multiply_heads(Thread& thread, const HeadProduct& product) {
    if (product.count == 0) return thread.barrier();
    const Matrix& matrix = product.matrix;
    if (matrix.type != DType::f32) encode_heads(thread, product);
    const int64_t heads = product.num_heads;
    const Blocking blocking(matrix, product.count, matrix.num_panels(),
                            int(ceil_div(thread.count(), heads)), FinishedBy::quad);
    const int64_t blocks = blocking.count();
    thread.share(heads * blocks, 1, [&](int64_t index, int64_t) {
        const int64_t head = index / blocks;
        const int64_t next = std::min(index + thread.chunk_step(), heads * blocks - 1);
        const Matrix own = head_matrix(product, head);
        const Rows rows = head_rows(product, head);
        float* out = product.out + head * product.out_head_stride;
        const Product head_product{
            rows, own, Epilogue::store, Activation::none, out, product.out_stride, false};
        multiply_block(
            head_product, blocking, index % blocks,
            head_matrix(product, next / blocks).panel(blocking.panel_range(next % blocks).begin));
    });
}

}  // namespace TACO_ISA
