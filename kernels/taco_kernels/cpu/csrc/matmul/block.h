// How a product is cut: into blocks of rows and panels, which threads share, and a block's panels
// into parts that stay in the cache while all its rows meet them.
#pragma once

#include <algorithm>

#include "matmul/matrix.h"
#include "runtime/range.h"

namespace TACO_ISA {

// The rows and panels of one block. Its sums are [panel][row][PANEL]: floats, or int32 of int8.
struct Block {
    Range rows, panels;
    const void* operands;  // of the first row
    int64_t operand_stride;
    const char* data;  // of the first panel
    int64_t panel_bytes;
    int64_t steps;     // of 64 bytes, to a panel
    const char* next;  // what will likely be read after this block
};

// Some steps of some neighbouring panels.
struct Part {
    const char* panels;
    int64_t panel_bytes;
    int64_t steps;
    bool is_first;     // nothing has been summed yet
    const char* next;  // what to fetch from memory meanwhile
};

// Steps of a part: two panels' are 32 KB, so that they and some rows stay in the first two levels
// of the cache. Sums between parts are kept exactly.
constexpr int64_t PART_STEPS = 256;

// Calls body(part, first panel, number of panels, first step) for parts of at most `max_panels` (a
// power of two) panels, by rising steps.
template <class Body>
void for_parts(const Block& block, int64_t max_panels, Body body) {
    const int64_t num_panels = block.panels.size();
    for (int64_t step = 0; step < block.steps; step += PART_STEPS) {
        const int64_t steps = std::min(PART_STEPS, block.steps - step);
        for (int64_t panel = 0, count; panel < num_panels; panel += count) {
            count = max_panels;
            while (count > num_panels - panel) count /= 2;
            const auto address = [&](int64_t p, int64_t s) {
                return block.data + p * block.panel_bytes + s * 64;
            };
            const bool ends_row = panel + count == num_panels;
            const char* next = !ends_row                         ? address(panel + count, step)
                               : step + PART_STEPS < block.steps ? address(0, step + PART_STEPS)
                                                                 : block.next;
            body(Part{address(panel, step), block.panel_bytes, steps, step == 0, next}, panel,
                 count, step);
        }
    }
}

}  // namespace TACO_ISA
