// Dot products of a few rows of operands with one panel of sixteen columns.
#pragma once

#include <type_traits>

#include "isa/vec.h"

namespace TACO_ISA {

// Operand type for panels of `Element`.
template <class Element>
using OperandOf = std::conditional_t<std::is_same_v<Element, float>, float, Bf16Operand>;

// Rows of one call, so that sums, a panel's row and an operand stay in registers. Widening pairs
// needs more registers.
template <class Element>
constexpr int ROWS_AT_ONCE = MAX_ACCUMULATORS > 16            ? 14
                             : std::is_same_v<Element, float> ? 6
                                                              : 4;

// sums[r] += rows[r] x panel over `k` (even for pairs), in the order of k.
template <class Element, int R>
inline void dot_panel(F32 (&sums)[R], const OperandOf<Element>* rows, int64_t row_stride,
                      const Element* panel, int64_t k) {
    if constexpr (std::is_same_v<Element, float>) {
        for (int64_t i = 0; i < k; ++i) {
            const F32 columns = load(panel + i * PANEL);
            for (int r = 0; r < R; ++r) {
                sums[r] = fma(set1(rows[r * row_stride + i]), columns, sums[r]);
            }
        }
    } else {
        for (int64_t i = 0; i < k; i += 2) {
            const PairRow columns = load_pairs(panel + i * PANEL);
            for (int r = 0; r < R; ++r) {
                sums[r] = dot_pairs(sums[r], columns, rows + r * row_stride + i);
            }
        }
    }
}

// Calls body(std::integral_constant<int, value>) for a value from 1 to Max.
template <int Max, class Body>
inline void with_constant(int64_t value, Body body) {
    if constexpr (Max > 1) {
        if (value < Max) return with_constant<Max - 1>(value, body);
    }
    body(std::integral_constant<int, Max>());
}

// Calls body(first, std::integral_constant<int, R>) for blocks of at most `Max` rows that cover
// `rows`, as evenly as possible.
template <int Max, class Body>
inline void for_row_blocks(int64_t rows, Body body) {
    const int64_t blocks = ceil_div(rows, Max);
    int64_t first = 0;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t end = rows * (block + 1) / blocks;
        with_constant<Max>(end - first, [&](auto count) { body(first, count); });
        first = end;
    }
}

}  // namespace TACO_ISA
