// AMX tile shapes for products of up to 32 rows with one or two panels.
#pragma once

#include "isa/vec.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// Rows of one call, sixteen per tile.
constexpr int64_t TILE_BLOCK_ROWS = 32;
// k of one tile: 64 bytes of bf16.
constexpr int64_t TILE_K = 32;

// Tile registers: 0 to 3 hold the sums (two rows of tiles by two columns), 4 and 5 the rows, 6 and
// 7 the panels.
class TileShapes {
public:
    // Configures the tiles for 1 to 32 rows; no-op if they have these shapes already.
    void set_rows(int64_t rows) {
        if (rows == rows_) return;
        rows_ = rows;
        TileConfig config;
        const int upper = int(rows < 16 ? rows : 16), lower = int(rows) - upper;
        config.set(0, upper, 64);
        config.set(1, upper, 64);
        config.set(4, upper, 64);
        if (lower) {
            config.set(2, lower, 64);
            config.set(3, lower, 64);
            config.set(5, lower, 64);
        }
        config.set(6, 16, 64);
        config.set(7, 16, 64);
        configure_tiles(config);
    }

private:
    int64_t rows_ = 0;
};

}  // namespace TACO_ISA

#endif
