// The tile product of all kernels: up to 32 rows with one or two panels of sixteen columns.
//
// A step is 64 bytes of k, 32 bf16 or 64 int8: one tile of sixteen rows, and one of a panel. The
// sums of 32 rows and two panels are a quad of four tiles. Each sum takes its products in the order
// of k, whatever the number of rows and panels.
#pragma once

#include <algorithm>

#include "isa/beside.h"
#include "isa/vec.h"

namespace TACO_ISA {

// Most rows of a quad.
constexpr int64_t QUAD_ROWS = 32;

}  // namespace TACO_ISA

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

struct Bf16Tiles {
    using Item = float;
    static constexpr DType TYPE = DType::bf16;
    static constexpr bool IS_INT8 = false;
};

struct Int8Tiles {
    using Item = int32_t;
    static constexpr DType TYPE = DType::i8;
    static constexpr bool IS_INT8 = true;
};

constexpr int TILE_ROW_BYTES = 64;
constexpr int64_t TILE_ROWS = QUAD_ROWS / 2, TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES;

// Where the tiles of a quad are: distances in bytes.
struct QuadSums {
    void* data;      // of the upper rows and the first panel
    int64_t lower;   // to the lower sixteen rows
    int64_t beside;  // to the second panel
};

struct QuadProduct {
    const void* rows;                     // the tile of the first step of the upper sixteen rows
    int64_t row_step_bytes = TILE_BYTES;  // from one step to the next
    int64_t lower_rows;                   // bytes to the lower sixteen rows
    const void* panels;   // the tile of the first step; a panel's tiles are adjacent
    int64_t panel_bytes;  // to the second panel
    int64_t steps;
    QuadSums from;  // null data: zeros
    QuadSums to;
};

// Which operand should not displace the other one in the first-level cache.
enum class Streamed { rows, panels };

// Configures the tiles for quads of up to `rows` rows. If `rows` < 32, tiles have only these rows,
// because reading missing rows takes as long as reading weights. A quad with fewer rows still reads
// and writes its tiles as configured. The missing rows need memory, with any contents.
inline void configure_quads(int64_t rows) {
    const int64_t upper = std::min(rows, TILE_ROWS);
    const int64_t lower = rows > TILE_ROWS ? std::min(rows - TILE_ROWS, TILE_ROWS) : TILE_ROWS;
    TileConfig config;
    for (const int tile : {0, 1, 4}) config.set(tile, int(upper), TILE_ROW_BYTES);
    for (const int tile : {2, 3, 5}) config.set(tile, int(lower), TILE_ROW_BYTES);
    for (const int tile : {6, 7}) config.set(tile, TILE_ROWS, TILE_ROW_BYTES);
    configure_tiles(config);
}

#define TACO_LOAD_TILE(streams, tile, pointer, stride) \
    do {                                               \
        if constexpr (streams) {                       \
            TILE_STREAM(tile, pointer, stride);        \
        } else {                                       \
            TILE_LOAD(tile, pointer, stride);          \
        }                                              \
    } while (false)
#define TACO_DOT(sum, rows, panel)           \
    do {                                     \
        if constexpr (Tiles::IS_INT8) {      \
            TILE_DOT_INT8(sum, rows, panel); \
        } else {                             \
            TILE_DOT_BF16(sum, rows, panel); \
        }                                    \
    } while (false)

// to = from + rows x panels. Tiles 0 to 3 hold the sums (two rows of tiles by two columns), 4 and 5
// the rows, 6 and 7 the panels: they have been configured. Returns `beside` as its calls left it:
// by value, so that it stays in registers although tile instructions read any memory.
template <class Tiles, bool TwoRows, bool TwoPanels, Streamed STREAMED, class Beside>
inline __attribute__((always_inline)) Beside multiply_quad(const QuadProduct& product,
                                                           Beside beside) {
    constexpr bool STREAMS_ROWS = STREAMED == Streamed::rows;
    constexpr bool STREAMS_PANELS = STREAMED == Streamed::panels;
    const char* rows = static_cast<const char*>(product.rows);
    const char* panels = static_cast<const char*>(product.panels);
    const int64_t row_step = product.row_step_bytes;
    const int64_t lower = product.lower_rows, panel_bytes = product.panel_bytes;
    if (product.from.data) {
        const char* sums = static_cast<const char*>(product.from.data);
        const int64_t below = product.from.lower, next = product.from.beside;
        TILE_LOAD(0, sums, TILE_ROW_BYTES);
        if constexpr (TwoPanels) TILE_LOAD(1, sums + next, TILE_ROW_BYTES);
        if constexpr (TwoRows) TILE_LOAD(2, sums + below, TILE_ROW_BYTES);
        if constexpr (TwoRows && TwoPanels) {
            TILE_LOAD(3, sums + below + next, TILE_ROW_BYTES);
        }
    } else {
        TILE_ZERO(0);
        if constexpr (TwoPanels) TILE_ZERO(1);
        if constexpr (TwoRows) TILE_ZERO(2);
        if constexpr (TwoRows && TwoPanels) TILE_ZERO(3);
    }
    for (int64_t step = 0; step < product.steps; ++step) {
        TACO_LOAD_TILE(STREAMS_PANELS, 6, panels, TILE_ROW_BYTES);
        TACO_LOAD_TILE(STREAMS_ROWS, 4, rows, TILE_ROW_BYTES);
        TACO_DOT(0, 4, 6);
        if constexpr (TwoPanels) {
            TACO_LOAD_TILE(STREAMS_PANELS, 7, panels + panel_bytes, TILE_ROW_BYTES);
            TACO_DOT(1, 4, 7);
        }
        if constexpr (TwoRows) {
            TACO_LOAD_TILE(STREAMS_ROWS, 5, rows + lower, TILE_ROW_BYTES);
            TACO_DOT(2, 5, 6);
            if constexpr (TwoPanels) TACO_DOT(3, 5, 7);
        }
        beside(step);
        rows += row_step;
        panels += TILE_BYTES;
    }
    char* sums = static_cast<char*>(product.to.data);
    const int64_t below = product.to.lower, next = product.to.beside;
    TILE_STORE(0, sums, TILE_ROW_BYTES);
    if constexpr (TwoPanels) TILE_STORE(1, sums + next, TILE_ROW_BYTES);
    if constexpr (TwoRows) TILE_STORE(2, sums + below, TILE_ROW_BYTES);
    if constexpr (TwoRows && TwoPanels) TILE_STORE(3, sums + below + next, TILE_ROW_BYTES);
    return beside;
}

#undef TACO_LOAD_TILE
#undef TACO_DOT

// The form for 1 to 32 rows and one or two panels.
template <class Tiles, Streamed STREAMED, class Beside>
inline Beside multiply_quad(int64_t num_rows, int64_t num_panels, const QuadProduct& product,
                            Beside beside) {
    if (num_rows > TILE_ROWS) {
        if (num_panels == 2) return multiply_quad<Tiles, true, true, STREAMED>(product, beside);
        return multiply_quad<Tiles, true, false, STREAMED>(product, beside);
    }
    if (num_panels == 2) return multiply_quad<Tiles, false, true, STREAMED>(product, beside);
    return multiply_quad<Tiles, false, false, STREAMED>(product, beside);
}

}  // namespace TACO_ISA

#endif
