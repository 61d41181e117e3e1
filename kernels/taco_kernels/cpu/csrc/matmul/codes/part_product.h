// Products of a block of rows with the panels of a part of codes, on vectors.
#pragma once

#include "matmul/codes/multiply_few_rows.h"
#include "matmul/multiply_vectors.h"

namespace TACO_ISA {

// Bytes of decoded panels: they stay in an L1 cache beside some rows.
constexpr int64_t DECODED_BYTES = 32 * 1024;

// Where pairs are widened, decoded panels are floats.
using DecodedStep = std::conditional_t<WIDENS_PAIRS, F32Step, Bf16Step>;
static_assert(DECODED_STEP_BYTES == STEP_BYTES * 2 / DecodedStep::GROUP);

// The panels of a block that are in one part: each, or each second one.
struct PartPanels {
    const CodePart& part;
    int64_t first, step, count;  // of the block

    PartPanels(const Block& block, const CodePart& of) : part(of), first(0), step(of.panel_step) {
        const int64_t begin = block.panels.begin;
        while (first < block.panels.size() && !of.has_panel(begin + first)) ++first;
        count = 0;
        for (int64_t at = first; at < block.panels.size() && of.has_panel(begin + at); at += step) {
            ++count;
        }
    }
};

// The products of a block with the panels of one part, a few panels at a time.
class PartProduct {
public:
    PartProduct(const Block& block, const PartPanels& panels, float* sums)
        : block_(block),
          panels_(panels),
          rows_(static_cast<const Bf16Operand*>(block.operands)),
          sums_(sums) {}

    // All rows share a decoded pair row.
    void run_few() {
        for (int64_t index = 0; index < panels_.count; index += CODE_PANELS) {
            add_few_rows(few_rows(index, {0, block_.steps}), block_.rows.size());
        }
    }

    // The first rows decode a part of the panels to a buffer, from which the others read it.
    void run() {
        alignas(64) char decoded[DECODED_BYTES];
        const int64_t count = block_.rows.size() - FEW_CODE_ROWS;
        constexpr int64_t PANEL_BYTES = DECODED_BYTES / CODE_PANELS;
        constexpr int64_t PART_STEPS = PANEL_BYTES / DECODED_STEP_BYTES;
        for (int64_t index = 0; index < panels_.count; index += CODE_PANELS) {
            for (int64_t step = 0; step < block_.steps; step += PART_STEPS) {
                const Range steps = {step, std::min(step + PART_STEPS, block_.steps)};
                FewRows few = few_rows(index, steps);
                for (int p = 0; p < CODE_PANELS; ++p) {
                    few.decoded[p] = reinterpret_cast<Bf16Operand*>(decoded + p * PANEL_BYTES);
                }
                add_few_rows(few, FEW_CODE_ROWS);
                add_decoded(decoded, PANEL_BYTES, index, CODE_PANELS, steps,
                            {FEW_CODE_ROWS, FEW_CODE_ROWS + count});
            }
        }
    }

    // Decodes a part of the panels, for codes that registers do not hold.
    void run_decoded() {
        alignas(64) char decoded[DECODED_BYTES];
        const int64_t rows = block_.rows.size();
        const int64_t most = pass_panels(rows, PASS_ROWS);
        for (int64_t index = 0, count; index < panels_.count; index += count) {
            count = most;
            while (count > panels_.count - index) count /= 2;
            const int64_t panel_bytes = DECODED_BYTES / count;
            const int64_t part_steps = panel_bytes / DECODED_STEP_BYTES;
            for (int64_t step = 0; step < block_.steps; step += part_steps) {
                const Range steps = {step, std::min(step + part_steps, block_.steps)};
                for (int64_t i = 0; i < count; ++i) {
                    decode_steps(panels_.part, data(index + i), of_matrix(steps),
                                 reinterpret_cast<Bf16Operand*>(decoded + i * panel_bytes));
                }
                add_decoded(decoded, panel_bytes, index, count, steps, {0, rows});
            }
        }
    }

private:
    int64_t panel(int64_t index) const { return panels_.first + index * panels_.step; }
    const char* data(int64_t index) const {
        return panels_.part.panel(block_.panels.begin + panel(index));
    }
    float* sums(int64_t index) const { return sums_ + panel(index) * block_.sums_stride(); }
    Range of_matrix(Range steps) const {
        return {block_.first_step + steps.begin, block_.first_step + steps.end};
    }

    FewRows few_rows(int64_t index, Range steps) const {
        FewRows few{
            panels_.part, of_matrix(steps), rows_ + 2 * steps.begin, block_.operand_stride, {}, {},
            {},           steps.begin == 0};
        for (int p = 0; p < CODE_PANELS; ++p) {
            const int64_t at = std::min(index + p, panels_.count - 1);
            few.panels[p] = data(at);
            few.sums[p] = sums(at);
        }
        return few;
    }

    // Adds the products of rows with decoded steps of `count` panels.
    void add_decoded(const char* decoded, int64_t panel_bytes, int64_t index, int64_t count,
                     Range steps, Range rows) const {
        count = std::min(count, panels_.count - index);
        const Part part{decoded, panel_bytes, steps.size() * 2 / DecodedStep::GROUP,
                        steps.begin == 0, decoded};
        for_row_blocks<PASS_ROWS>(rows.size(), [&](int64_t row, auto pass_rows) {
            row += rows.begin;
            for (int64_t i = 0; i < count; i += pass_panels(pass_rows)) {
                Part own = part;
                own.panels += i * panel_bytes;
                add_pass<DecodedStep, pass_rows>(
                    std::min<int64_t>(count - i, pass_panels(pass_rows)), own,
                    rows_ + row * block_.operand_stride + 2 * steps.begin, block_.operand_stride,
                    sums(index + i) + row * PANEL, panels_.step * block_.sums_stride());
            }
        });
    }

    const Block& block_;
    const PartPanels& panels_;
    const Bf16Operand* const rows_;
    float* const sums_;
};

}  // namespace TACO_ISA
