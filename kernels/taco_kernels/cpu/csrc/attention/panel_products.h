// Products of a few rows of operands with one or two panels at a time. With two, an operand is read
// once for both, and a decode step's few rows have twice as many sums to fill the pipeline.
#pragma once

#include "isa/beside.h"
#include "matmul/panel_dot.h"

namespace TACO_ISA {

// Rows of one call, so that the sums of two panels, their rows and an operand stay in registers.
// Widening pairs needs more registers.
template <class Element>
constexpr int PAIR_ROWS = MAX_ACCUMULATORS > 16            ? 14
                          : std::is_same_v<Element, float> ? 3
                                                           : 2;

// sums[p][r] += rows[r] x panels[p] over `k` (even for pairs), in the order of k. beside(i) is
// called for each number or pair.
template <class Element, int R, int P, class Beside>
inline void dot_panels(F32 (&sums)[P][R], const OperandOf<Element>* rows, int64_t row_stride,
                       const Element* const (&panels)[P], int64_t k, Beside beside) {
    constexpr int64_t group = std::is_same_v<Element, float> ? 1 : 2;
    for (int64_t i = 0; i < k; i += group) {
        beside(i);
        if constexpr (group == 1) {
            F32 columns[P];
            for (int p = 0; p < P; ++p) columns[p] = load(panels[p] + i * PANEL);
            for (int r = 0; r < R; ++r) {
                const F32 operand = set1(rows[r * row_stride + i]);
                for (int p = 0; p < P; ++p) sums[p][r] = fma(operand, columns[p], sums[p][r]);
            }
        } else {
            PairRow columns[P];
            for (int p = 0; p < P; ++p) columns[p] = load_pairs(panels[p] + i * PANEL);
            for (int r = 0; r < R; ++r) {
                for (int p = 0; p < P; ++p) {
                    sums[p][r] = dot_pairs(sums[p][r], columns[p], rows + r * row_stride + i);
                }
            }
        }
    }
}

}  // namespace TACO_ISA
