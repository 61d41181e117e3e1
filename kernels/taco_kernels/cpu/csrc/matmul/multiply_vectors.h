// The inner loop of a product without AMX: a few rows with a few panels, all sums in vector
// registers.
#pragma once

#include "matmul/block.h"
#include "matmul/panel_dot.h"
#include "matmul/panel_steps.h"

namespace TACO_ISA {

// Rows of one pass over a panel.
constexpr int PASS_ROWS = MAX_ACCUMULATORS > 16 ? 14 : 6;

// Panels of a pass with this many rows, a power of two. Each sum waits for its previous value, so
// few rows need several panels to keep the arithmetic units busy.
constexpr int pass_panels(int64_t rows) {
    int panels = 1;
    while (panels < 8 && 2 * panels * rows <= MAX_ACCUMULATORS) panels *= 2;
    return panels;
}

// sums[p][r] (from zero at the first step) += rows x panels. Never inlined: otherwise the compiler
// runs out of registers for the sums.
template <class Step, int R, int P>
__attribute__((noinline)) void add_pass(const Part& part, const typename Step::Operand* rows,
                                        int64_t row_stride, typename Step::Item* sums,
                                        int64_t sums_stride) {
    typename Step::Sum sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const typename Step::Item* start = sums + p * sums_stride + r * PANEL;
            sum[r][p] = part.is_first ? Step::zeros() : Step::load_sum(start);
        }
    }
    const char* panels = part.panels;
    const char* next = part.next;
    for (int64_t step = 0; step < part.steps; ++step) {
#pragma GCC unroll 2
        for (int half = 0; half < Step::PARTS; ++half) {
            asm volatile("" ::: "memory");  // holds the loads of this half back until here
            typename Step::PanelPart row[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                const int64_t offset = p * part.panel_bytes;
                row[p] = Step::load_part(panels + offset, half);
                if (half == 0) __builtin_prefetch(next + offset, 0, 2);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    sum[r][p] = Step::dot(sum[r][p], row[p], rows + r * row_stride, half);
                    keep(sum[r][p]);
                }
            }
        }
        panels += STEP_BYTES;
        next += STEP_BYTES;
        rows += Step::GROUP;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            Step::store_sum(sums + p * sums_stride + r * PANEL, sum[r][p]);
        }
    }
}

// Calls the add_pass for a number of panels known at run time, a power of two.
template <class Step, int R, int P = pass_panels(R)>
void add_pass(int64_t panels, const Part& part, const typename Step::Operand* rows,
              int64_t row_stride, typename Step::Item* sums, int64_t sums_stride) {
    if constexpr (P > 1) {
        if (panels < P) {
            return add_pass<Step, R, P / 2>(panels, part, rows, row_stride, sums, sums_stride);
        }
    }
    add_pass<Step, R, P>(part, rows, row_stride, sums, sums_stride);
}

// Computes the sums of a block with vectors.
template <class Step>
void sum_on_vectors(const Block& block, typename Step::Item* sums) {
    const int64_t rows = block.rows.size();
    const auto* operands = static_cast<const typename Step::Operand*>(block.operands);
    const int64_t panels = pass_panels(ceil_div(rows, ceil_div(rows, PASS_ROWS)));
    const int64_t sums_stride = block.sums_stride();
    for_parts(block, panels, [&](const Part& part, int64_t panel, int64_t count, int64_t step) {
        for_row_blocks<PASS_ROWS>(rows, [&](int64_t first, auto pass_rows) {
            add_pass<Step, pass_rows>(
                count, part, operands + first * block.operand_stride + step * Step::GROUP,
                block.operand_stride, sums + panel * sums_stride + first * PANEL, sums_stride);
        });
    });
}

}  // namespace TACO_ISA
