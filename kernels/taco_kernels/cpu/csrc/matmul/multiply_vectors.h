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
// The same where passes of at most `most` rows share `rows` evenly.
constexpr int pass_panels(int64_t rows, int64_t most) {
    return pass_panels(ceil_div(rows, ceil_div(rows, most)));
}

// Steps of a part that several passes of rows use. Those of two panels are 32 KB, so that they and
// some rows stay in the L1 and L2 caches. Sums are kept exactly between parts.
constexpr int64_t PART_STEPS = 256;

// The rows of one pass wait for memory, which is fastest as one stream: as eight streams, of eight
// panels side by side, it has half to three quarters of that speed on Zen 5. So a pass has few
// panels. One is enough if its sums are ready before its next bytes arrive. Two dependent FMAs a
// step take too long for that, and more than eight rows spend less time on loads of operands if two
// panels share them. Weights in the cache arrive earlier, so they take more panels.
template <class Step>
constexpr int stream_panels(int rows) {
    return std::min(rows <= 8 ? Step::STREAM_PANELS : 2, pass_panels(rows));
}
constexpr int64_t STREAM_STEPS_AHEAD = 64;  // 4 KB

// Localities of __builtin_prefetch. A non-temporal prefetch fills the L1 cache alone: weights that
// are used once then evict no activations, KV or host memory from the L2 and last-level caches.
constexpr int NON_TEMPORAL = 0, L2_CACHE = 2;

// The memory that the steps of a pass prefetch.
enum class Ahead {
    STREAM,  // STREAM_STEPS_AHEAD of the same panels, then the next panels; non-temporal
    PART,    // all panels of the next part, into the L2 cache
    PANEL,   // the panel at `next`, into the L2 cache
};

// sums[p][r] (from zero at the first step) += rows x panels. Never inlined: otherwise the compiler
// runs out of registers for the sums.
template <class Step, Ahead AHEAD, int R, int P>
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
    constexpr int CACHE = AHEAD == Ahead::STREAM ? NON_TEMPORAL : L2_CACHE;
    constexpr int PANELS_AHEAD = AHEAD == Ahead::PANEL ? 1 : P;
    const char* panels = part.panels;
    const char* const end = panels + part.steps * STEP_BYTES;
    const char* ahead = part.next;
    if (AHEAD == Ahead::STREAM && part.steps > STREAM_STEPS_AHEAD) {
        ahead = panels + STREAM_STEPS_AHEAD * STEP_BYTES;
    }
    for (int64_t step = 0; step < part.steps; ++step) {
#pragma GCC unroll 2
        for (int half = 0; half < Step::PARTS; ++half) {
            asm volatile("" ::: "memory");  // holds the loads of this half back until here
            typename Step::PanelPart row[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                const int64_t offset = p * part.panel_bytes;
                row[p] = Step::load_part(panels + offset, half);
                if (half == 0 && p < PANELS_AHEAD) {
                    __builtin_prefetch(ahead + offset, 0, CACHE);
                }
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
        ahead += STEP_BYTES;
        rows += Step::GROUP;
        if (AHEAD == Ahead::STREAM && ahead == end) ahead = part.next;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            Step::store_sum(sums + p * sums_stride + r * PANEL, sum[r][p]);
        }
    }
}

// Calls the add_pass for a number of panels known at run time, a power of two of at most P.
template <class Step, int R, Ahead AHEAD = Ahead::PART, int P = pass_panels(R)>
void add_pass(int64_t panels, const Part& part, const typename Step::Operand* rows,
              int64_t row_stride, typename Step::Item* sums, int64_t sums_stride) {
    if constexpr (P > 1) {
        if (panels < P) {
            return add_pass<Step, R, AHEAD, P / 2>(panels, part, rows, row_stride, sums,
                                                   sums_stride);
        }
    }
    add_pass<Step, AHEAD, R, P>(part, rows, row_stride, sums, sums_stride);
}

// Computes the sums of a block whose rows are those of one pass, and whose weights are not cached.
template <class Step, int R>
void stream_block(const Block& block, typename Step::Item* sums) {
    constexpr int P = stream_panels<Step>(R);
    const auto* operands = static_cast<const typename Step::Operand*>(block.operands);
    const int64_t sums_stride = block.sums_stride();
    const auto add = [&](const Part& part, int64_t panel, int64_t count, int64_t) {
        add_pass<Step, R, Ahead::STREAM, P>(count, part, operands, block.operand_stride,
                                            sums + panel * sums_stride, sums_stride);
    };
    for_parts(block, P, block.steps, add);
}

// Rows of several passes have no more panels than passes: all are prefetched.
static_assert(pass_panels(PASS_ROWS / 2 + 1) <= 2);

// Computes the sums of a block part by part.
template <class Step, Ahead AHEAD>
void sum_parts(const Block& block, typename Step::Item* sums) {
    const int64_t rows = block.rows.size();
    const auto* operands = static_cast<const typename Step::Operand*>(block.operands);
    const int64_t panels = pass_panels(rows, PASS_ROWS);
    const int64_t sums_stride = block.sums_stride();
    const auto add = [&](Part part, int64_t panel, int64_t count, int64_t step) {
        const char* const next = part.next;
        int64_t pass = 0;
        for_row_blocks<PASS_ROWS>(rows, [&](int64_t first, auto pass_rows) {
            if (AHEAD == Ahead::PANEL) {
                // The passes prefetch the panels in turn, so that memory is read all the time and
                // not by the first pass alone.
                part.next = next + pass % count * part.panel_bytes;
            }
            ++pass;
            add_pass<Step, pass_rows, AHEAD>(
                count, part, operands + first * block.operand_stride + step * Step::GROUP,
                block.operand_stride, sums + panel * sums_stride + first * PANEL, sums_stride);
        });
    };
    for_parts(block, panels, PART_STEPS, add);
}

// Computes the sums of a block with vectors.
template <class Step>
void sum_on_vectors(const Block& block, typename Step::Item* sums) {
    const int64_t rows = block.rows.size();
    if (rows > PASS_ROWS) return sum_parts<Step, Ahead::PANEL>(block, sums);
    if (block.is_cached) return sum_parts<Step, Ahead::PART>(block, sums);
    with_constant<PASS_ROWS>(rows, [&](auto count) { stream_block<Step, count>(block, sums); });
}

}  // namespace TACO_ISA
