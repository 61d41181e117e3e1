// Rows of int8 operands as plain signed bytes, in the order in which passes over a panel read them,
// and their sums over groups of columns.
#pragma once

#include "matmul/codes/code_passes.h"
#include "matmul/codes/grouped_int8.h"
#include "matmul/pack.h"

namespace TACO_ISA {

// Numbers that are summed at once: groups have a multiple of as many columns, or whole rows.
constexpr int64_t SUM_K = 16;

// The rows of a block, by passes (for_code_passes) of R rows: [column / 4][R][column % 4]. Sums of
// a pass are [SUM_K or group of columns][R].
class SignedRows {
public:
    static int64_t bytes(int64_t count, int64_t k) {
        const int64_t padded = padded_k(DType::i8, k);
        return numbers_bytes(count, padded) + 3 * sums_bytes(count, padded);
    }

    // `memory`: `bytes`, aligned to 64.
    SignedRows(const Block& block, int64_t k, void* memory)
        : count_(block.rows.size()),
          padded_(padded_k(DType::i8, k)),
          num_sums_(padded_ / SUM_K),
          numbers_(static_cast<int8_t*>(memory)),
          sums_(at<int32_t>(numbers_, numbers_bytes(count_, padded_))),
          starts_(at<int32_t>(sums_, sums_bytes(count_, padded_))),
          factors_(at<int32_t>(starts_, sums_bytes(count_, padded_))) {
        for_code_passes(count_, [&](int64_t first, auto rows) {
            for (int64_t step = 0; step < padded_ / STEP_K; ++step) order(block, first, rows, step);
        });
    }

    // For each group: where its sums start, which is `factor` times the sum of its numbers; and
    // what zeros are multiplied with, an int32, or minima, a float: the negative of that sum.
    void sum_groups(int64_t group_size, int32_t factor, GroupOffset offset) {
        if (group_size == group_size_ && factor == factor_ && offset == offset_) return;
        group_size_ = group_size;
        factor_ = factor;
        offset_ = offset;
        const int64_t group_sums = ceil_div(group_size, SUM_K);
        // What the last rows write past their pass, the next pass overwrites.
        for_code_passes(count_, [&](int64_t first, auto rows) {
            int64_t to = first * num_sums_;
            for (int64_t group = 0; group < num_sums_; group += group_sums, to += rows) {
                const int64_t end = std::min(group + group_sums, num_sums_);
                I32 sum = zero_i32();
                for (int64_t i = group; i < end; ++i) {
                    sum = add(sum, load_i32(sums_ + first * num_sums_ + i * rows));
                }
                store_i32(starts_ + to, mul(sum, set1_i32(factor)));
                const I32 negative = sub(zero_i32(), sum);
                if (offset == GroupOffset::zero) store_i32(factors_ + to, negative);
                if (offset == GroupOffset::minimum) {
                    store(reinterpret_cast<float*>(factors_ + to), to_float(negative));
                }
            }
        });
    }

    // Numbers of the pass of `rows` rows from `first` on.
    const int8_t* numbers(int64_t first, int64_t rows, int64_t k) const {
        return numbers_ + first * padded_ + k * rows;
    }
    // Of that pass, from a group on.
    const int32_t* starts(int64_t first, int64_t rows, int64_t group) const {
        return starts_ + first * num_sums_ + group * rows;
    }
    const int32_t* factors(int64_t first, int64_t rows, int64_t group) const {
        return factors_ + first * num_sums_ + group * rows;
    }

private:
    static constexpr int64_t QUADS = STEP_K / 4, SLACK = 64;
    static_assert(LONG_PASS_ROWS <= QUADS && LANES == QUADS);

    static int64_t numbers_bytes(int64_t count, int64_t padded) {
        return round_up(count * padded + SLACK, 64);
    }
    static int64_t sums_bytes(int64_t count, int64_t padded) {
        return round_up(count * padded / SUM_K * 4 + SLACK, 64);
    }
    template <class Item>
    static Item* at(void* memory, int64_t bytes) {
        return reinterpret_cast<Item*>(static_cast<char*>(memory) + bytes);
    }

    // Orders one step of a pass.
    void order(const Block& block, int64_t first, int64_t rows, int64_t step) {
        int8_t* out = numbers_ + first * padded_ + step * STEP_K * rows;
        int32_t* sums = sums_ + first * num_sums_ + step * (STEP_K / SUM_K) * rows;
        alignas(64) uint32_t quads[QUADS][QUADS], ordered[QUADS][QUADS];
        for (int64_t row = 0; row < rows; ++row) {
            const Int8Operand* operands = static_cast<const Int8Operand*>(block.operands) +
                                          (first + row) * block.operand_stride + step * STEP_K;
            auto* numbers = reinterpret_cast<int8_t*>(quads[row]);
            for (int64_t i = 0; i < STEP_K; i += 4) decode_quad(numbers + i, operands + i);
        }
        if (rows == 1) {
            std::memcpy(out, quads[0], sizeof quads[0]);
            alignas(64) int32_t of_quads[QUADS];
            store_i32(of_quads, add_quads(zero_i32(), out));
            for (int64_t i = 0; i < QUADS; i += SUM_K / 4) {
                *sums++ = of_quads[i] + of_quads[i + 1] + of_quads[i + 2] + of_quads[i + 3];
            }
            return;
        }
        std::fill(quads[rows], quads[QUADS - 1] + QUADS, 0u);
        transpose_words(ordered[0], quads[0]);
        // What one quad writes past the pass's rows, the next ones overwrite.
        for (int64_t i = 0; i < QUADS; ++i) std::memcpy(out + i * rows * 4, ordered[i], SLACK);
        for (int64_t i = 0; i < QUADS; i += SUM_K / 4, sums += rows) {
            I32 sum = zero_i32();
            for (int64_t j = 0; j < SUM_K / 4; ++j) {
                sum = add_quads(sum, reinterpret_cast<const int8_t*>(ordered[i + j]));
            }
            store_i32(sums, sum);
        }
    }

    const int64_t count_, padded_, num_sums_;
    int8_t* const numbers_;
    int32_t* const sums_;  // of SUM_K numbers each
    int32_t* const starts_;
    int32_t* const factors_;
    int64_t group_size_ = 0;
    int32_t factor_ = 0;
    GroupOffset offset_ = GroupOffset::none;
};

}  // namespace TACO_ISA
