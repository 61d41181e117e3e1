// Rows of int8 operands as plain signed bytes, in the order in which passes over a panel read them,
// and their sums over groups of columns.
#pragma once

#include "matmul/block.h"
#include "matmul/codes/grouped_int8.h"
#include "matmul/multiply_vectors.h"
#include "matmul/pack.h"

namespace TACO_ISA {

// Rows of a pass: decoding takes registers too.
constexpr int CODE_PASS_ROWS = PASS_ROWS > 12 ? 12 : PASS_ROWS;

// The rows of a block, by passes (for_row_blocks) of R rows: [column / 4][R][column % 4].
class SignedRows {
public:
    static int64_t bytes(int64_t count, int64_t k) {
        const int64_t padded = padded_k(DType::i8, k);
        return round_up(count * padded + SLACK, 64) + 2 * count * padded / STEP_K * 4;
    }

    // `memory`: `bytes`, aligned to 64.
    SignedRows(const Block& block, int64_t k, void* memory)
        : count_(block.rows.size()),
          padded_(padded_k(DType::i8, k)),
          num_steps_(padded_ / STEP_K),
          numbers_(static_cast<int8_t*>(memory)),
          step_sums_(reinterpret_cast<int32_t*>(numbers_ + round_up(count_ * padded_ + SLACK, 64))),
          excess_(step_sums_ + count_ * num_steps_) {
        for_row_blocks<CODE_PASS_ROWS>(count_, [&](int64_t first, auto rows) {
            for (int64_t step = 0; step < num_steps_; ++step) order(block, first, rows, step);
        });
    }

    // Sums the numbers of each group, times a factor.
    void sum_groups(int64_t group_size, int32_t factor) {
        if (group_size == group_size_ && factor == factor_) return;
        group_size_ = group_size;
        factor_ = factor;
        const int64_t group_steps = ceil_div(group_size, STEP_K);
        for (int64_t row = 0; row < count_; ++row) {
            const int32_t* steps = step_sums_ + row * num_steps_;
            int32_t* excess = excess_ + row * num_steps_;
            for (int64_t first = 0; first < num_steps_; first += group_steps, ++excess) {
                const int64_t end = std::min(first + group_steps, num_steps_);
                int32_t sum = 0;
                for (int64_t step = first; step < end; ++step) sum += steps[step];
                *excess = factor * sum;
            }
        }
    }

    // Numbers of the pass of `rows` rows from `first` on.
    const int8_t* numbers(int64_t first, int64_t rows, int64_t k) const {
        return numbers_ + first * padded_ + k * rows;
    }
    const int32_t* excess(int64_t row, int64_t group) const {
        return excess_ + row * num_steps_ + group;
    }
    int64_t excess_stride() const { return num_steps_; }

private:
    static constexpr int64_t QUADS = STEP_K / 4, SLACK = 64;
    static_assert(CODE_PASS_ROWS <= QUADS);

    // Orders one step of a pass.
    void order(const Block& block, int64_t first, int64_t rows, int64_t step) {
        int8_t* out = numbers_ + first * padded_ + step * STEP_K * rows;
        alignas(64) uint32_t quads[QUADS][QUADS], ordered[QUADS][QUADS];
        for (int64_t row = 0; row < rows; ++row) {
            const Int8Operand* operands = static_cast<const Int8Operand*>(block.operands) +
                                          (first + row) * block.operand_stride + step * STEP_K;
            alignas(64) int8_t numbers[STEP_K];
            for (int64_t i = 0; i < STEP_K; i += 4) decode_quad(numbers + i, operands + i);
            int32_t sum = 0;
            for (int8_t number : numbers) sum += number;
            step_sums_[(first + row) * num_steps_ + step] = sum;
            std::memcpy(rows == 1 ? reinterpret_cast<uint32_t*>(out) : quads[row], numbers,
                        sizeof numbers);
        }
        if (rows == 1) return;
        std::fill(quads[rows], quads[QUADS - 1] + QUADS, 0u);
        transpose_words(ordered[0], quads[0]);
        // What one quad writes past the pass's rows, the next ones overwrite.
        for (int64_t i = 0; i < QUADS; ++i) std::memcpy(out + i * rows * 4, ordered[i], SLACK);
    }

    const int64_t count_, padded_, num_steps_;
    int8_t* const numbers_;
    int32_t* const step_sums_;
    int32_t* const excess_;
    int64_t group_size_ = 0;
    int32_t factor_ = 0;
};

}  // namespace TACO_ISA
