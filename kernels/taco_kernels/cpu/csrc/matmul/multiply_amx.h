// The inner loop of a product with AMX: up to 32 rows with one or two panels.
#pragma once

#include "isa/tile_shapes.h"
#include "matmul/block.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

struct Bf16Tiles {
    using Operand = bf16;
    using Item = float;
    static constexpr bool IS_INT8 = false;
};

struct Int8Tiles {
    using Operand = int8_t;
    using Item = int32_t;
    static constexpr bool IS_INT8 = true;
};

// Steps of a panel in one tile, and the tile's bytes.
constexpr int64_t TILE_STEPS = 16, TILE_BYTES = 1024;

// Prefetches as much of the next part as a step reads of this one.
template <bool TwoPanels>
inline void fetch_tiles(const char* next, int64_t panel_bytes) {
    for (int line = 0; line < 16; ++line) {
        __builtin_prefetch(next + line * 64, 0, 2);
        if constexpr (TwoPanels) __builtin_prefetch(next + panel_bytes + line * 64, 0, 2);
    }
}

// sums[p][r] (from zero at the first step) += rows x panels. The order of k is the same for all
// four forms.
template <class Tiles, bool TwoRows, bool TwoPanels>
void add_tiles(const Part& part, bool fetches, const typename Tiles::Operand* operands,
               int64_t operand_stride, typename Tiles::Item* sums, int64_t sums_stride) {
    const char* rows = reinterpret_cast<const char*>(operands);
    const int64_t row_bytes = operand_stride * int64_t(sizeof(typename Tiles::Operand));
    const char* lower_rows = rows + 16 * row_bytes;
    typename Tiles::Item *beside = sums + sums_stride, *below = sums + 16 * PANEL;
    if (part.is_first) {
        TILE_ZERO(0);
        if constexpr (TwoPanels) TILE_ZERO(1);
        if constexpr (TwoRows) TILE_ZERO(2);
        if constexpr (TwoRows && TwoPanels) TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sums, 64);
        if constexpr (TwoPanels) TILE_LOAD(1, beside, 64);
        if constexpr (TwoRows) TILE_LOAD(2, below, 64);
        if constexpr (TwoRows && TwoPanels) TILE_LOAD(3, beside + 16 * PANEL, 64);
    }
    for (int64_t step = 0; step < part.steps; step += TILE_STEPS) {
        const int64_t offset = step * 64;
        if (fetches) fetch_tiles<TwoPanels>(part.next + offset, part.panel_bytes);
        // 64 bytes of a row cover as many k as one tile of a panel.
        const int64_t k_offset = step / TILE_STEPS * 64;
        TILE_LOAD(6, part.panels + offset, 64);
        TILE_LOAD(4, rows + k_offset, row_bytes);
        if constexpr (Tiles::IS_INT8) {
            TILE_DOT_INT8(0, 4, 6);
        } else {
            TILE_DOT_BF16(0, 4, 6);
        }
        if constexpr (TwoPanels) {
            TILE_LOAD(7, part.panels + part.panel_bytes + offset, 64);
            if constexpr (Tiles::IS_INT8) {
                TILE_DOT_INT8(1, 4, 7);
            } else {
                TILE_DOT_BF16(1, 4, 7);
            }
        }
        if constexpr (TwoRows) {
            TILE_LOAD(5, lower_rows + k_offset, row_bytes);
            if constexpr (Tiles::IS_INT8) {
                TILE_DOT_INT8(2, 5, 6);
                if constexpr (TwoPanels) TILE_DOT_INT8(3, 5, 7);
            } else {
                TILE_DOT_BF16(2, 5, 6);
                if constexpr (TwoPanels) TILE_DOT_BF16(3, 5, 7);
            }
        }
    }
    TILE_STORE(0, sums, 64);
    if constexpr (TwoPanels) TILE_STORE(1, beside, 64);
    if constexpr (TwoRows) TILE_STORE(2, below, 64);
    if constexpr (TwoRows && TwoPanels) TILE_STORE(3, beside + 16 * PANEL, 64);
}

// Computes the sums of a block with AMX tiles.
template <class Tiles>
void sum_on_tiles(const Block& block, typename Tiles::Item* sums) {
    using Operand = typename Tiles::Operand;
    const int64_t count = block.rows.size(), sums_stride = count * PANEL;
    const auto* operands = static_cast<const Operand*>(block.operands);
    TileShapes shapes;
    // First whole blocks of rows with all panels, then the remaining rows: the tile shapes change
    // once.
    const auto sum_rows = [&](Range rows, bool fetches) {
        for_parts(block, 2, [&](const Part& part, int64_t panel, int64_t panels, int64_t step) {
            const int64_t k = step / TILE_STEPS * (64 / int64_t(sizeof(Operand)));
            for (int64_t row = rows.begin; row < rows.end; row += TILE_BLOCK_ROWS) {
                const bool fetches_now = fetches && row == rows.begin;
                const Operand* first = operands + row * block.operand_stride + k;
                typename Tiles::Item* out = sums + panel * sums_stride + row * PANEL;
                const auto run = [&](auto two_rows, auto two_panels) {
                    add_tiles<Tiles, two_rows, two_panels>(part, fetches_now, first,
                                                           block.operand_stride, out, sums_stride);
                };
                const bool two_rows = rows.end - row > 16;
                if (two_rows && panels == 2) run(std::true_type(), std::true_type());
                if (two_rows && panels == 1) run(std::true_type(), std::false_type());
                if (!two_rows && panels == 2) run(std::false_type(), std::true_type());
                if (!two_rows && panels == 1) run(std::false_type(), std::false_type());
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
