// The best column of rows of logits, and the parts of their sums of exp, of one block at a time.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>

#include "dispatch/kernel_table.h"
#include "matmul/multiply.h"
#include "sampling/log_sum_exp.h"

namespace TACO_ISA {

// Orders (value, column) pairs as integers: greater values first, then lower columns. Both zeros
// are equal; NaN is greater than every number.
inline uint64_t rank_of(float value, int64_t column) {
    value += 0.0f;  // of the two zeros the positive one
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rising = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return uint64_t(rising) << 32 | (0xffffffff - uint32_t(column));
}
inline float value_of(uint64_t rank) {
    const uint32_t rising = uint32_t(rank >> 32);
    const uint32_t bits = rising & 0x80000000 ? rising & 0x7fffffff : ~rising;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
constexpr uint64_t NAN_RANK = ~uint64_t(0);

// The column of a rank; NO_TOKEN where the greatest value is not finite.
inline int32_t column_of(uint64_t rank) {
    const uint32_t rising = uint32_t(rank >> 32);
    const bool is_finite = rising > 0x007fffff && rising < 0xff800000;  // between the infinities
    return is_finite ? int32_t(0xffffffff - uint32_t(rank)) : int32_t(NO_TOKEN);
}

// Replaces a row's best rank by a better one.
inline void raise(std::atomic<uint64_t>& best, uint64_t rank) {
    uint64_t seen = best.load(std::memory_order_relaxed);
    while (seen < rank && !best.compare_exchange_weak(seen, rank, std::memory_order_relaxed)) {
    }
}

inline F32 transformed(F32 logit, const LogitTransform& transform) {
    if (transform.scale != 1) logit = mul(logit, set1(transform.scale));
    if (transform.cap == 0) return logit;
    const F32 cap = set1(transform.cap);
    return mul(cap, tanh(div(logit, cap)));
}

// The logits of a block.
class LogitValues {
public:
    LogitValues(BlockValues values, const LogitTransform& transform)
        : values_(values), transform_(transform) {}

    // As BlockValues.
    void add_outliers(int64_t row, Range panels) const { values_.add_outliers(row, panels); }
    F32 at(int64_t row, int64_t panel) const {
        return transformed(values_.at(row, panel), transform_);
    }

private:
    const BlockValues values_;
    const LogitTransform transform_;
};

// The bits of the columns of a panel that exist and that the mask, or null, allows.
inline uint32_t allowed_bits(const uint32_t* mask, int64_t panel, int64_t columns) {
    const int64_t count = std::min(PANEL, columns - panel * PANEL);
    return (mask ? panel_bits(mask, panel) : 0xffff) & ((1u << count) - 1);
}

inline bool has_nan(const LogitValues& values, const Block& block, int64_t row, int64_t columns,
                    const uint32_t* mask) {
    for (int64_t panel = block.panels.begin; panel < block.panels.end; ++panel) {
        float lanes[LANES];
        store(lanes, values.at(row, panel));
        const uint32_t allowed = allowed_bits(mask, panel, columns);
        for (int lane = 0; lane < LANES; ++lane) {
            if (allowed >> lane & 1 && std::isnan(lanes[lane])) return true;
        }
    }
    return false;
}

// The best rank of one row's allowed columns in a block; NAN_RANK if any of them is NaN. May be 0
// if it is less than `seen`.
inline uint64_t best_rank(const LogitValues& values, const Block& block, int64_t row,
                          int64_t columns, const uint32_t* mask, uint64_t seen) {
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    F32 best = set1(lowest), best_panel = set1(float(block.panels.begin)), products = zero();
    for (int64_t panel = block.panels.begin; panel < block.panels.end; ++panel) {
        const F32 raw = values.at(row, panel);
        const F32 value = select_bits(allowed_bits(mask, panel, columns), raw, set1(lowest));
        products = fma(raw, zero(), products);
        best_panel = select_less(best, value, set1(float(panel)), best_panel);
        best = select_less(best, value, value, best);
    }
    // A product with zero is NaN for infinities too; these are rare.
    if (std::isnan(reduce_add(products)) && has_nan(values, block, row, columns, mask)) {
        return NAN_RANK;
    }
    if (reduce_max(best) < value_of(seen)) return 0;  // false as long as nothing was seen
    float lanes[LANES], panels[LANES];
    store(lanes, best);
    store(panels, best_panel);
    uint64_t rank = 0;
    for (int lane = 0; lane < LANES; ++lane) {
        const int64_t column = int64_t(panels[lane]) * PANEL + lane;
        if (column < columns) rank = std::max(rank, rank_of(lanes[lane], column));
    }
    return rank;
}

// Computes the partial sums of one row's columns in a block. Blocks begin at multiples of four
// panels.
inline void sum_partially(const LogitValues& values, const Block& block, int64_t row,
                          int64_t columns, PartialSum* sums) {
    static_assert(PARTIAL_SUM_PANELS == BLOCK_PANELS);
    const F32 lowest = set1(-std::numeric_limits<float>::infinity());
    for (int64_t first = block.panels.begin; first < block.panels.end;
         first += PARTIAL_SUM_PANELS) {
        F32 logits[PARTIAL_SUM_PANELS];
        for (int64_t i = 0; i < PARTIAL_SUM_PANELS; ++i) {
            const int64_t panel = first + i;
            logits[i] = panel < block.panels.end ? values.at(row, panel) : lowest;
            if ((panel + 1) * PANEL > columns) {
                const F32 past = set1(float(columns - panel * PANEL));
                logits[i] = select_less(lane_numbers(), past, logits[i], lowest);
            }
        }
        sums[first / PARTIAL_SUM_PANELS] = partial_sum(logits);
    }
}

// Finishes the rows of a block.
inline void rank_rows(const Rows& rows, const Matrix& matrix, const Argmax& wanted,
                      const Block& block, void* sums) {
    const LogitValues values(BlockValues(matrix, rows.scales, block, sums), wanted.transform);
    const int64_t num_sums = num_partial_sums(matrix.n);
    for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
        values.add_outliers(row, block.panels);
        std::atomic<uint64_t>& best = wanted.ranks[row];
        const uint64_t seen = best.load(std::memory_order_relaxed);
        raise(best, best_rank(values, block, row, matrix.n, wanted.masks.mask(row), seen));
        if (wanted.logprobs) {
            sum_partially(values, block, row, matrix.n, wanted.sums + row * num_sums);
        }
    }
}

}  // namespace TACO_ISA
