// The products of LoRA adapters: rows sorted by adapter, and two grouped products over the adapters
// that rows have, A and then B, as of a mixture of experts.
#pragma once

#include <algorithm>

#include "experts/expert_order.h"

namespace TACO_ISA {

struct AdapterScratch {
    ExpertOrder order;
    // Rows of operands, as `order.rows` gives them:
    char* operands;  // of A, [rows, rows.stride]
    char* inner;     // A's results: operands of B
    int64_t inner_stride;

    AdapterScratch(Arena& arena, const AdapterProduct& product)
        : order(arena, product.num_adapters, product.rows.count) {
        const Matrix& b = *product.b;
        const int64_t count =
            ExpertOrder::most_rows(b.type, product.num_adapters, product.rows.count);
        inner_stride = padded_k(b.type, b.k);
        operands = arena.take<char>(count * product.rows.stride * operand_bytes(b.type));
        inner = arena.take<char>(count * inner_stride * operand_bytes(b.type));
    }

    // A's results for a row of operands, from column `k` on.
    char* inner_row(DType type, int64_t row, int64_t k = 0) const {
        return inner + operand_offset(type, row, inner_stride, k);
    }
};

class AdapterPass {
public:
    AdapterPass(Thread& thread, const AdapterProduct& product, const AdapterScratch& scratch)
        : thread_(thread),
          product_(product),
          scratch_(scratch),
          order_(scratch.order),
          type_(product.b->type) {}

    void run() {
        if (thread_.index() == 0) sort();
        thread_.barrier();
        prepare_rows();
        multiply_a();
        multiply_b();
    }

private:
    void sort() const {
        const GroupedMatrices matrices = {product_.num_adapters, product_.a,
                                          product_.a->num_panels(), product_.b,
                                          product_.num_panels};
        sort_pairs(matrices, product_.rows.count, 1, thread_.count(), order_,
                   [&](int64_t row, int64_t) { return product_.id_of(row); });
    }

    // Makes the operands of an adapter's rows adjacent, and fills the rows of no adapter.
    void prepare_rows() {
        const Rows& rows = product_.rows;
        const int64_t num_pairs = order_.num_pairs(), rank = product_.b->k;
        const int64_t padding = (scratch_.inner_stride - rank) * operand_bytes(type_);
        const int64_t columns = product_.num_panels * PANEL;
        thread_.share(rows.count, 4, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                if (product_.id_of(row) >= 0) continue;
                std::fill_n(product_.out + row * product_.out_stride, columns, -0.0f);
            }
            for (int64_t at = begin; at < std::min(end, num_pairs); ++at) {
                const int64_t place = order_.rows[at];
                copy_operand_row(type_, rows.stride, rows.data, order_.pairs[at], scratch_.operands,
                                 place);
                // A writes `rank` numbers; B reads the padding too.
                if (padding) {
                    std::memset(scratch_.inner_row(type_, place, rank), 0, size_t(padding));
                }
            }
        });
    }

    void multiply_a() {
        const Rows rows = {0, scratch_.operands, product_.rows.stride, nullptr};
        share_experts(thread_, order_, product_.a, product_.a->num_panels(), order_.first_blocks,
                      rows, FinishedBy::quad,
                      [&](const Matrix& matrix, const Rows& own, int64_t hit,
                          const Blocking& blocking, int64_t index, const void* next) {
                          Product product{};
                          product.rows = own;
                          product.matrix = matrix;
                          product.out = scratch_.inner_row(type_, order_.row_starts[hit]);
                          product.out_stride = scratch_.inner_stride;
                          product.out_is_operand = type_ == DType::bf16;
                          multiply_block(product, blocking, index, next);
                      });
    }

    void multiply_b() {
        const Rows rows = {0, scratch_.inner, scratch_.inner_stride, nullptr};
        const auto write = [&](const BlockValues& values, const Block& block, int64_t hit) {
            for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
                const int64_t pair = order_.pairs[order_.starts[hit] + row];
                float* out = product_.out + pair * product_.out_stride;
                for (int64_t panel = block.panels.begin; panel < block.panels.end; ++panel) {
                    store(out + panel * PANEL, values.at(row, panel));
                }
            }
        };
        share_experts(
            thread_, order_, product_.b, product_.num_panels, order_.second_blocks, rows,
            FinishedBy::block,
            [&](const Matrix& matrix, const Rows& own, int64_t hit, const Blocking& blocking,
                int64_t index, const void* next) {
                run_block(own, matrix, blocking, index, next, [&](const Block& block, void* sums) {
                    write(BlockValues(matrix, nullptr, block, sums), block, hit);
                });
            });
    }

    Thread& thread_;
    const AdapterProduct& product_;
    const AdapterScratch& scratch_;
    const ExpertOrder& order_;
    const DType type_;
};

inline int64_t adapters_scratch_bytes(const AdapterProduct& product) {
    Arena counter(nullptr);
    AdapterScratch(counter, product);
    return counter.used();
}

inline void multiply_adapters(Thread& thread, const AdapterProduct& product) {
    Arena arena(product.scratch);
    const AdapterScratch scratch(arena, product);
    AdapterPass(thread, product, scratch).run();
}

}  // namespace TACO_ISA
