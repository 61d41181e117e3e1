// A block of a product, and the parts of k that stay in the cache while all rows of a block use
// them.
#pragma once

#include <algorithm>

#include "matmul/matrix.h"
#include "matmul/operand_layout.h"
#include "runtime/range.h"

namespace TACO_ISA {

// The rows and panels of one block. Its sums are [panel][row][PANEL], with memory for whole tiles
// of rows: floats, or int32 for int8.
//
// A block may have a range of k alone (segments of k, matrix.h): then `operands` and `data` point
// to its first step, and `panel_bytes` is still that of whole panels. Sums over a range must be
// those of a matrix that has no other k: from zero, in the order of k.
struct Block {
    Range rows, panels;
    const void* operands;  // of the first row, which begins a tile
    int64_t operand_stride;
    const char* data;  // of the first panel
    int64_t panel_bytes;
    int64_t steps;                  // of 64 bytes each, of a panel
    const char* next;               // memory that is likely read after this block
    const Matrix* codes = nullptr;  // if it has codes: the matrix; then there is no `data`
    int64_t first_step = 0;         // of codes
    bool is_cached = false;         // see Matrix

    // Sums from one panel to the next.
    int64_t sums_stride() const { return round_up(rows.size(), OPERAND_TILE_ROWS) * PANEL; }
};

// Some steps of some adjacent panels.
struct Part {
    const char* panels;
    int64_t panel_bytes;
    int64_t steps;
    bool is_first;     // sums start at zero
    const char* next;  // memory that is read after the part
};

// Calls body(part, first panel, number of panels, first step) for parts of at most `max_panels` (a
// power of two) panels and `max_steps` steps, in order of steps.
template <class Body>
void for_parts(const Block& block, int64_t max_panels, int64_t max_steps, Body body) {
    const int64_t num_panels = block.panels.size();
    for (int64_t step = 0; step < block.steps; step += max_steps) {
        const int64_t steps = std::min(max_steps, block.steps - step);
        for (int64_t panel = 0, count; panel < num_panels; panel += count) {
            count = max_panels;
            while (count > num_panels - panel) count /= 2;
            const auto address = [&](int64_t p, int64_t s) {
                return block.data + p * block.panel_bytes + s * 64;
            };
            const bool ends_row = panel + count == num_panels;
            const char* next = !ends_row                    ? address(panel + count, step)
                               : step + steps < block.steps ? address(0, step + steps)
                                                            : block.next;
            body(Part{address(panel, step), block.panel_bytes, steps, step == 0, next}, panel,
                 count, step);
        }
    }
}

}  // namespace TACO_ISA
