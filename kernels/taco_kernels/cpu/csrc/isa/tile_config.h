// The 64 bytes that LDTILECFG reads (Intel SDM, volume 1, chapter 18).
#pragma once

#include <cstdint>

namespace TACO_ISA {

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};  // of tiles 0 to 7
    uint8_t rows[16] = {};

    void set(int tile, int num_rows, int num_row_bytes) {
        rows[tile] = uint8_t(num_rows);
        row_bytes[tile] = uint16_t(num_row_bytes);
    }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace TACO_ISA
