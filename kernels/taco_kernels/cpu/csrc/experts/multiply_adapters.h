// A x of the LoRA adapters of rows: rows sorted by adapter, and a grouped product over the adapters
// that rows have, as of a mixture of experts. The epilogue of the product that they belong to
// multiplies the results with B (matmul/adapter_sums.h).
#pragma once

#include <algorithm>

#include "experts/adapter_args.h"
#include "experts/expert_order.h"

namespace TACO_ISA {

struct AdapterScratch {
    ExpertOrder order;
    int32_t *places, *ids;  // as of AdapterRows
    // Rows of operands, as `order.rows` gives them:
    char* operands;  // of A, [rows, rows.stride]
    char* inner;     // A's results: operands of B
    int64_t inner_stride;

    AdapterScratch(Arena& arena, const AdapterProduct& product)
        : order(arena, product.adapters.count, product.rows.count) {
        const Matrix& a = *product.adapters.a;
        const int64_t count =
            ExpertOrder::most_rows(a.type, product.adapters.count, product.rows.count);
        inner_stride = padded_k(a.type, a.n);
        places = arena.take<int32_t>(product.rows.count);
        ids = arena.take<int32_t>(product.rows.count);
        operands = arena.take<char>(count * product.rows.stride * operand_bytes(a.type));
        inner = arena.take<char>(count * inner_stride * operand_bytes(a.type));
    }

    char* inner_row(DType type, int64_t row, int64_t k = 0) const {
        return inner + operand_offset(type, row, inner_stride, k);
    }

    AdapterRows rows(const Adapters& adapters) const {
        return {places, ids, inner, inner_stride, adapters.b, adapters.ranges};
    }
};

class AdapterPass {
public:
    AdapterPass(Thread& thread, const AdapterProduct& product, const AdapterScratch& scratch)
        : thread_(thread),
          product_(product),
          a_(product.adapters.a),
          scratch_(scratch),
          order_(scratch.order),
          type_(a_->type) {}

    void run() {
        if (thread_.index() == 0) sort();
        thread_.barrier();
        gather_rows();
        multiply();
    }

private:
    // Blocks of few panels, since A has few.
    auto blocking() const {
        return [this](int64_t hit) {
            Blocking blocking(*a_, order_.num_rows(hit), a_->num_panels(), thread_.count(),
                              FinishedBy::quad);
            blocking.panels = blocking.on_tiles ? 2 : 1;
            return blocking;
        };
    }

    void sort() const {
        std::fill_n(scratch_.places, product_.rows.count, -1);
        sort_pairs(type_, product_.adapters.count, product_.rows.count, 1, order_,
                   [&](int64_t row, int64_t) { return product_.id_of(row); });
        count_blocks(order_, order_.first_blocks, blocking());
    }

    // Makes the operands of an adapter's rows adjacent.
    void gather_rows() {
        const Rows& rows = product_.rows;
        const int64_t rank = a_->n;
        const int64_t padding = (scratch_.inner_stride - rank) * operand_bytes(type_);
        thread_.share(order_.num_pairs(), 4, [&](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end; ++at) {
                const int64_t row = order_.pairs[at], place = order_.rows[at];
                scratch_.places[row] = int32_t(place);
                scratch_.ids[row] = product_.id_of(row);
                copy_operand_row(type_, rows.stride, rows.data, row, scratch_.operands, place);
                // A writes `rank` numbers; B reads pairs.
                if (padding) {
                    std::memset(scratch_.inner_row(type_, place, rank), 0, size_t(padding));
                }
            }
        });
    }

    void multiply() {
        const Rows rows = {0, scratch_.operands, product_.rows.stride, nullptr};
        share_experts(thread_, order_, a_, order_.first_blocks, rows, blocking(),
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

    Thread& thread_;
    const AdapterProduct& product_;
    const Matrix* const a_;
    const AdapterScratch& scratch_;
    const ExpertOrder& order_;
    const DType type_;
};

inline int64_t adapters_scratch_bytes(const AdapterProduct& product) {
    Arena counter(nullptr);
    AdapterScratch(counter, product);
    return counter.used();
}

// Returns the results, which are in the scratch memory.
inline AdapterRows multiply_adapters(Thread& thread, const AdapterProduct& product) {
    Arena arena(product.scratch);
    const AdapterScratch scratch(arena, product);
    AdapterPass(thread, product, scratch).run();
    return scratch.rows(product.adapters);
}

}  // namespace TACO_ISA
