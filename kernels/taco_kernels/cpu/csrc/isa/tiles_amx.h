// AMX tiles. Tile numbers are part of the instruction, so these are macros.
#pragma once

#include <immintrin.h>

#include "isa/tile_config.h"

namespace TACO_ISA {

// In assembly, as the loads below: GCC's intrinsics do not tell the compiler which memory these two
// read (GCC 12: 8 bytes of the 64, and none), so that earlier stores may be dropped.
inline void configure_tiles(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
inline void release_tiles() { _tile_release(); }

}  // namespace TACO_ISA

#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, pointer, stride_bytes)                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile::"r"(pointer), "r"(int64_t(stride_bytes)) \
                     : "memory")
// The same, but what it reads does not displace what is in the first-level cache.
#define TILE_STREAM(tile, pointer, stride_bytes)                         \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile::"r"(pointer), \
                     "r"(int64_t(stride_bytes))                          \
                     : "memory")
#define TILE_STORE(tile, pointer, stride_bytes) _tile_stored(tile, pointer, stride_bytes)
// sum += a (rows of pairs) x b (pairs of columns)
#define TILE_DOT_BF16(sum, a, b) _tile_dpbf16ps(sum, a, b)
// the same with quads of signed bytes
#define TILE_DOT_INT8(sum, a, b) _tile_dpbssd(sum, a, b)
