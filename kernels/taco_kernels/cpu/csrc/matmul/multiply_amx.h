// The inner loop of a product with AMX: up to 32 rows with one or two panels.
#pragma once

#include "isa/quad_product.h"
#include "isa/tile_shapes.h"
#include "matmul/block.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// Steps of a panel (64 bytes each) in one tile.
constexpr int64_t TILE_STEPS = 16;

// Prefetches as much of the next part as a step reads of this one.
struct FetchPart {
    const char* next;  // null: nothing
    int64_t panel_bytes;
    bool two_panels;

    void operator()(int64_t) {
        if (!next) return;
        for (int line = 0; line < 16; ++line, next += 64) {
            __builtin_prefetch(next, 0, 2);
            if (two_panels) __builtin_prefetch(next + panel_bytes, 0, 2);
        }
    }
};

// Computes the sums of a block with AMX tiles.
template <class Tiles>
void sum_on_tiles(const Block& block, typename Tiles::Item* sums) {
    const int64_t count = block.rows.size(), sums_stride = count * PANEL;
    const auto* operands = static_cast<const char*>(block.operands);
    const int64_t row_bytes = block.operand_stride * (Tiles::IS_INT8 ? 1 : 2);
    TileShapes shapes;
    // First whole blocks of rows with all panels, then the remaining rows: the tile shapes change
    // once.
    const auto sum_rows = [&](Range rows, bool fetches) {
        for_parts(block, 2, [&](const Part& part, int64_t panel, int64_t panels, int64_t step) {
            // 64 bytes of a row cover as many k as one tile of a panel.
            const char* first = operands + step / TILE_STEPS * 64;
            for (int64_t row = rows.begin; row < rows.end; row += TILE_BLOCK_ROWS) {
                const bool fetches_now = fetches && row == rows.begin;
                const QuadSums out = {sums + panel * sums_stride + row * PANEL, 64, TILE_ROWS * 64,
                                      sums_stride * 4};
                const QuadProduct quad = {first + row * row_bytes,
                                          row_bytes,
                                          64,
                                          TILE_ROWS * row_bytes,
                                          part.panels,
                                          part.panel_bytes,
                                          ceil_div(part.steps, TILE_STEPS),
                                          part.is_first ? QuadSums{} : out,
                                          out};
                multiply_quad<Tiles, Streamed::rows>(
                    rows.end - row, panels, quad,
                    FetchPart{fetches_now ? part.next : nullptr, part.panel_bytes, panels == 2});
            }
        });
    };
    const int64_t whole = count - count % TILE_BLOCK_ROWS;
    if (whole) {
        shapes.set_rows(TILE_BLOCK_ROWS);
        sum_rows({0, whole}, true);
    }
    if (whole < count) {
        shapes.set_rows(count - whole);
        sum_rows({whole, count}, whole == 0);
    }
    release_tiles();
}

}  // namespace TACO_ISA

#endif
