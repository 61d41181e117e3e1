// AMX tiles in plain C++: the same names as tiles_amx.h, the same shapes and faults.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "isa/tile_config.h"
#include "runtime/types.h"

namespace TACO_ISA {

struct EmulatedTiles {
    TileConfig config;
    alignas(64) uint8_t bytes[8][16][64];
    bool is_configured = false;
};

inline EmulatedTiles& emulated_tiles() {
    thread_local EmulatedTiles tiles;
    return tiles;
}

// Aborts where the hardware raises #UD or #GP.
inline void require(bool condition) {
    if (!condition) std::abort();
}

inline void configure_tiles(const TileConfig& config) {
    EmulatedTiles& tiles = emulated_tiles();
    require(config.palette == 1 && config.start_row == 0);
    for (int i = 0; i < 8; ++i) {
        require(config.rows[i] <= 16 && config.row_bytes[i] <= 64 && config.row_bytes[i] % 4 == 0);
        require((config.rows[i] == 0) == (config.row_bytes[i] == 0));
    }
    tiles.config = config;
    tiles.is_configured = true;
    std::memset(tiles.bytes, 0, sizeof tiles.bytes);
}
inline void release_tiles() { emulated_tiles().is_configured = false; }

inline void tile_zero(int tile) {
    require(emulated_tiles().is_configured && emulated_tiles().config.rows[tile]);
    std::memset(emulated_tiles().bytes[tile], 0, sizeof emulated_tiles().bytes[tile]);
}
inline void tile_load(int tile, const void* p, int64_t stride) {
    tile_zero(tile);
    EmulatedTiles& tiles = emulated_tiles();
    for (int r = 0; r < tiles.config.rows[tile]; ++r) {
        std::memcpy(tiles.bytes[tile][r], static_cast<const uint8_t*>(p) + r * stride,
                    tiles.config.row_bytes[tile]);
    }
}
inline void tile_store(int tile, void* p, int64_t stride) {
    EmulatedTiles& tiles = emulated_tiles();
    require(tiles.is_configured && tiles.config.rows[tile]);
    for (int r = 0; r < tiles.config.rows[tile]; ++r) {
        std::memcpy(static_cast<uint8_t*>(p) + r * stride, tiles.bytes[tile][r],
                    tiles.config.row_bytes[tile]);
    }
}

// Checks shapes as the hardware does: sum [M, N], a [M, K], b [K, N], K in groups of 4 bytes.
inline void check_dot(int sum, int a, int b) {
    const TileConfig& config = emulated_tiles().config;
    require(emulated_tiles().is_configured && sum != a && sum != b && a != b);
    require(config.rows[sum] == config.rows[a] && config.row_bytes[sum] == config.row_bytes[b]);
    require(config.row_bytes[a] == 4 * config.rows[b] && config.rows[sum] && config.rows[b]);
}

template <class Sum, class Element, class Widen>
inline void tile_dot(int sum, int a, int b, Widen widen) {
    check_dot(sum, a, b);
    constexpr int group = 4 / sizeof(Element);
    EmulatedTiles& tiles = emulated_tiles();
    const int rows = tiles.config.rows[a], depth = tiles.config.rows[b];
    const int columns = tiles.config.row_bytes[b] / 4;
    for (int m = 0; m < rows; ++m) {
        Sum out[16];
        std::memcpy(out, tiles.bytes[sum][m], sizeof out);
        for (int k = 0; k < depth; ++k) {
            for (int n = 0; n < columns; ++n) {
                for (int i = 0; i < group; ++i) {
                    Element x, y;
                    std::memcpy(&x, tiles.bytes[a][m] + 4 * k + i * sizeof x, sizeof x);
                    std::memcpy(&y, tiles.bytes[b][k] + 4 * n + i * sizeof y, sizeof y);
                    out[n] += widen(x) * widen(y);
                }
            }
        }
        std::memcpy(tiles.bytes[sum][m], out, sizeof out);
    }
}

}  // namespace TACO_ISA

#define TILE_ZERO(tile) tile_zero(tile)
#define TILE_LOAD(tile, pointer, stride_bytes) tile_load(tile, pointer, stride_bytes)
#define TILE_STREAM(tile, pointer, stride_bytes) tile_load(tile, pointer, stride_bytes)
#define TILE_STORE(tile, pointer, stride_bytes) tile_store(tile, pointer, stride_bytes)
#define TILE_DOT_BF16(sum, a, b) tile_dot<float, bf16>(sum, a, b, from_bf16)
#define TILE_DOT_INT8(sum, a, b) \
    tile_dot<int32_t, int8_t>(sum, a, b, [](int8_t x) { return int32_t(x); })
