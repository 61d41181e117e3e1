// The product of a mixture of experts: rows sorted by expert, one grouped product over the experts
// that a row has chosen (gate and up, then down), and the weighted sums.
//
// Threads share the blocks of all experts in one loop, so each expert's weights are read from
// memory once and no thread waits for an expert with many rows. The products are those of
// multiply.h: an output element's bits depend on its own row and expert alone.
#pragma once

#include <algorithm>

#include "experts/expert_order.h"

namespace TACO_ISA {

struct ExpertScratch {
    ExpertOrder order;
    // Rows of operands, as `order.rows` gives them:
    char* operands;          // of gate_up, [rows, rows.stride]
    RowScale* scales;        // of int8 operands
    char* inner;             // gate_up's results: operands of `down` if it is bf16, else floats
    char* inner_operands;    // int8 only
    RowScale* inner_scales;  // int8 only
    // By the pair's number:
    float* outputs;  // [num_pairs, output_stride], of `down`
    int64_t inner_stride, output_stride;
    DType inner_type;  // bf16 or f32

    ExpertScratch(Arena& arena, const ExpertProduct& product)
        : order(arena, product.num_experts, product.rows.count * product.top_k) {
        const int64_t pairs = product.rows.count * product.top_k;
        const Matrix &gate_up = *product.gate_up, &down = *product.down;
        const int64_t rows = ExpertOrder::most_rows(gate_up.type, product.num_experts, pairs);
        const bool is_i8 = down.type == DType::i8;
        inner_type = down.type == DType::bf16 ? DType::bf16 : DType::f32;
        inner_stride = padded_k(down.type, down.k);
        output_stride = round_up(down.n, PANEL);
        operands = arena.take<char>(rows * product.rows.stride * operand_bytes(gate_up.type));
        scales = arena.take<RowScale>(gate_up.type == DType::i8 ? rows : 0);
        inner = arena.take<char>(rows * inner_stride * operand_bytes(inner_type));
        inner_operands = arena.take<char>(is_i8 ? rows * inner_stride * sizeof(Int8Operand) : 0);
        inner_scales = arena.take<RowScale>(is_i8 ? rows : 0);
        outputs = arena.take<float>(pairs * output_stride);
    }

    // gate_up's results for a row of operands, from column `k` on.
    char* inner_row(int64_t row, int64_t k = 0) const {
        return inner + operand_offset(inner_type, row, inner_stride, k);
    }
};

class ExpertPass {
public:
    ExpertPass(Thread& thread, const ExpertProduct& product, const ExpertScratch& scratch)
        : thread_(thread), product_(product), scratch_(scratch), order_(scratch.order) {}

    void run() {
        if (thread_.index() == 0) sort();
        thread_.barrier();
        gather_rows();
        multiply_gate_up();
        multiply_down();
        sum_outputs();
    }

private:
    int64_t num_pairs() const { return product_.rows.count * product_.top_k; }

    // The blocks of a hit expert. Threads share those of all, so that one expert's need not keep
    // all threads busy.
    Blocking blocking(const Matrix& matrix, int64_t num_panels, int64_t hit,
                      FinishedBy finished_by) const {
        const int num_threads = int(ceil_div(thread_.count(), *order_.num_hit));
        return {matrix, order_.num_rows(hit), num_panels, num_threads, finished_by};
    }
    auto gate_up_blocking() const {
        return [this](int64_t hit) {
            const Matrix& matrix = *product_.gate_up;
            return blocking(matrix, matrix.num_pair_panels(), hit, FinishedBy::quad);
        };
    }
    auto down_blocking() const {
        return [this](int64_t hit) {
            const Matrix& matrix = *product_.down;
            return blocking(matrix, matrix.num_panels(), hit, FinishedBy::block);
        };
    }

    void sort() const {
        sort_pairs(product_.gate_up->type, product_.num_experts, product_.rows.count,
                   product_.top_k, order_, [&](int64_t row, int64_t rank) {
                       return product_.ids[row * product_.ids_stride + rank];
                   });
        count_blocks(order_, order_.first_blocks, gate_up_blocking());
        count_blocks(order_, order_.second_blocks, down_blocking());
    }

    // Copies the operands of each pair's row, so that an expert's rows are adjacent.
    void gather_rows() {
        const Rows& rows = product_.rows;
        const DType type = product_.gate_up->type;
        const int64_t inner_size = product_.down->k;
        const int64_t padding =
            (scratch_.inner_stride - inner_size) * operand_bytes(scratch_.inner_type);
        thread_.share(num_pairs(), 4, [&](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end; ++at) {
                const int64_t row = order_.pairs[at] / product_.top_k, place = order_.rows[at];
                copy_operand_row(type, rows.stride, rows.data, row, scratch_.operands, place);
                if (type == DType::i8) scratch_.scales[place] = rows.scales[row];
                // gate_up writes inner_size numbers; `down` reads the padding too.
                if (padding) {
                    std::memset(scratch_.inner_row(place, inner_size), 0, size_t(padding));
                }
            }
        });
    }

    void multiply_gate_up() {
        const GatedActivation& activation = product_.activation;
        const Rows rows = {0, scratch_.operands, product_.rows.stride, scratch_.scales};
        share_experts(thread_, order_, product_.gate_up, order_.first_blocks, rows,
                      gate_up_blocking(),
                      [&](const Matrix& matrix, const Rows& own, int64_t hit,
                          const Blocking& blocking, int64_t index, const void* next) {
                          Product product{};
                          product.rows = own;
                          product.matrix = matrix;
                          product.epilogue = Epilogue::gate_mul;
                          product.activation = activation.function;
                          product.out = scratch_.inner_row(order_.row_starts[hit]);
                          product.out_stride = scratch_.inner_stride;
                          product.out_is_operand = scratch_.inner_type == DType::bf16;
                          product.alpha = activation.alpha;
                          product.limit = activation.limit;
                          multiply_block(product, blocking, index, next);
                      });
    }

    void multiply_down() {
        const auto write = [&](const BlockValues& values, const Block& block, int64_t hit) {
            for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
                const int64_t pair = order_.pairs[order_.starts[hit] + row];
                float* out = scratch_.outputs + pair * scratch_.output_stride;
                values.add_outliers(row, block.panels);
                for (int64_t panel = block.panels.begin; panel < block.panels.end; ++panel) {
                    store(out + panel * PANEL, values.at(row, panel));
                }
            }
        };
        share_experts(
            thread_, order_, product_.down, order_.second_blocks, inner_rows(), down_blocking(),
            [&](const Matrix& matrix, const Rows& own, int64_t hit, const Blocking& blocking,
                int64_t index, const void* next) {
                run_block(own, matrix, blocking, index, next, [&](const Block& block, void* sums) {
                    write(BlockValues(matrix, own.scales, block, sums), block, hit);
                });
            });
    }

    // The results of gate_up as operands of `down`.
    Rows inner_rows() {
        const Matrix& down = *product_.down;
        const int64_t stride = scratch_.inner_stride;
        if (down.type != DType::i8) return {0, scratch_.inner, stride, nullptr};
        thread_.share(num_pairs(), 4, [&](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end; ++at) {
                const int64_t row = order_.rows[at];
                encode_row(down.type, down.k, reinterpret_cast<float*>(scratch_.inner_row(row)),
                           scratch_.inner_operands + operand_offset(down.type, row, stride, 0),
                           scratch_.inner_scales + row);
            }
        });
        return {0, scratch_.inner_operands, stride, scratch_.inner_scales};
    }

    void sum_outputs() {
        const int64_t columns = product_.down->n, top_k = product_.top_k;
        thread_.share(product_.rows.count, 1, [&](int64_t row, int64_t) {
            const float* weights = product_.weights + row * product_.weights_stride;
            const float* outputs = scratch_.outputs + row * top_k * scratch_.output_stride;
            float* out = product_.out + row * product_.out_stride;
            for (int64_t column = 0; column < columns; column += PANEL) {
                F32 sum = mul(set1(weights[0]), load(outputs + column));
                for (int64_t rank = 1; rank < top_k; ++rank) {
                    const F32 output = load(outputs + rank * scratch_.output_stride + column);
                    sum = fma(set1(weights[rank]), output, sum);
                }
                const int64_t count = std::min(PANEL, columns - column);
                if (product_.adds) sum = add(load_lanes(out + column, count), sum);
                store_lanes(out + column, sum, count);
            }
        });
    }

    Thread& thread_;
    const ExpertProduct& product_;
    const ExpertScratch& scratch_;
    const ExpertOrder& order_;
};

inline int64_t experts_scratch_bytes(const ExpertProduct& product) {
    Arena counter(nullptr);
    ExpertScratch(counter, product);
    return counter.used();
}

inline void multiply_experts(Thread& thread, const ExpertProduct& product) {
    Arena arena(product.scratch);
    const ExpertScratch scratch(arena, product);
    ExpertPass(thread, product, scratch).run();
}

}  // namespace TACO_ISA
