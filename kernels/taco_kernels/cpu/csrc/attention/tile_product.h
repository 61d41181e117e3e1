// AMX products of up to 32 rows with one or two panels of bf16 pairs: the scores and the weighted
// values of attention.
#pragma once

#include "isa/tile_shapes.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

struct TileProduct {
    const bf16* rows;
    int64_t row_stride;
    const bf16* panels[2];
    int64_t k;   // a multiple of TILE_K
    float* out;  // of the first panel; the second's is PANEL floats further
    int64_t out_stride;
};

// out = rows x panels. The order of k is the same for all four forms.
template <bool TwoRows, bool TwoPanels>
inline void multiply_tiles(const TileProduct& product) {
    TILE_ZERO(0);
    if constexpr (TwoPanels) TILE_ZERO(1);
    if constexpr (TwoRows) TILE_ZERO(2);
    if constexpr (TwoRows && TwoPanels) TILE_ZERO(3);
    const bf16* lower_rows = product.rows + 16 * product.row_stride;
    for (int64_t k = 0; k < product.k; k += TILE_K) {
        TILE_LOAD(6, product.panels[0] + k * PANEL, 64);
        TILE_LOAD(4, product.rows + k, product.row_stride * sizeof(bf16));
        TILE_DOT_BF16(0, 4, 6);
        if constexpr (TwoPanels) {
            TILE_LOAD(7, product.panels[1] + k * PANEL, 64);
            TILE_DOT_BF16(1, 4, 7);
        }
        if constexpr (TwoRows) {
            TILE_LOAD(5, lower_rows + k, product.row_stride * sizeof(bf16));
            TILE_DOT_BF16(2, 5, 6);
            if constexpr (TwoPanels) TILE_DOT_BF16(3, 5, 7);
        }
    }
    const int64_t stride = product.out_stride * int64_t(sizeof(float));
    float* lower_out = product.out + 16 * product.out_stride;
    TILE_STORE(0, product.out, stride);
    if constexpr (TwoPanels) TILE_STORE(1, product.out + PANEL, stride);
    if constexpr (TwoRows) TILE_STORE(2, lower_out, stride);
    if constexpr (TwoRows && TwoPanels) TILE_STORE(3, lower_out + PANEL, stride);
}

// Calls the form for 1 to 32 rows and one or two panels; `shapes` has been set to the rows.
inline void multiply_tiles(const TileProduct& product, int64_t rows, int64_t num_panels) {
    if (rows > 16) {
        if (num_panels == 2) return multiply_tiles<true, true>(product);
        return multiply_tiles<true, false>(product);
    }
    if (num_panels == 2) return multiply_tiles<false, true>(product);
    multiply_tiles<false, false>(product);
}

}  // namespace TACO_ISA

#endif
