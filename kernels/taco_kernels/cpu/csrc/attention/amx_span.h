// One span's keys and values as the panels of tile products. Keys stay in the cache if they have
// this layout there; values are copied.
#pragma once

#include "attention/span_panels.h"
#include "attention/transpose_panel.h"
#include "isa/quad_product.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// k of a tile of bf16.
constexpr int64_t TILE_DEPTH = 32;
// Items of a tile of bf16, and of one of sums.
constexpr int64_t TILE_ITEMS = TILE_ROWS * TILE_DEPTH, TILE_SUMS = TILE_ROWS * PANEL;
// Items of sixteen tokens and sixteen dims: half of a tile.
constexpr int64_t PANEL_ITEMS = PANEL * PANEL;

// Panels of sixteen tokens, [depth / 32] tiles of [16 pairs of dims][16 tokens][2]. If one panel of
// a strip is missing, the other is in its place: no row sees those scores.
struct KeyTiles {
    const bf16* panels[SPAN_PANELS];
    int64_t steps;  // tiles of a panel
};

// `memory`: [SPAN, round_up(key_depth, TILE_DEPTH)], for keys of 8 bits, and for those of bf16
// whose dims are not whole tiles.
template <class Source>
inline void prepare_keys(KeyTiles& out, const SpanPanels<Source>& in, bf16* memory) {
    const int64_t depth = round_up(in.key_depth, TILE_DEPTH);
    out.steps = depth / TILE_DEPTH;
    for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
        if constexpr (std::is_same_v<Source, bf16>) {
            if (in.key_depth == depth) {
                out.panels[p] = in.keys[p];
                continue;
            }
        }
        bf16* panel = memory + p * PANEL * depth;
        widen_panel(panel, in.keys[p], in.key_depth * PANEL);
        std::fill(panel + in.key_depth * PANEL, panel + depth * PANEL, bf16(0));
        out.panels[p] = panel;
    }
    if (in.panels.begin % 2) out.panels[in.panels.begin - 1] = out.panels[in.panels.begin];
    if (in.panels.end % 2) out.panels[in.panels.end] = out.panels[in.panels.end - 1];
}

// Writes sixteen dims of a panel of tokens: half of a tile.
template <class Source>
inline void copy_values(bf16* out, const SpanPanels<Source>& in, int64_t panel, int64_t dim_panel) {
    if (!in.holds(panel)) {
        std::fill_n(out, PANEL_ITEMS, bf16(0));
    } else if (in.value_panels == 0) {  // a latent entry
        transpose_panel(out, in.keys[panel] + dim_panel * PANEL_ITEMS);
    } else {
        widen_panel(out, in.values[panel] + dim_panel * in.value_stride, PANEL_ITEMS);
    }
}

// Writes values as panels of sixteen dims, [SPAN / 32] tiles of [16 pairs of tokens][16 dims][2]
// each: the strips that hold a panel of `in`. `memory`: [dim, SPAN]; `dim`: of the values, padded.
template <class Source>
inline void prepare_values(const SpanPanels<Source>& in, int64_t dim, bf16* memory) {
    const Range panels = {in.panels.begin / 2 * 2, round_up(in.panels.end, 2)};
    for (int64_t p = panels.begin; p < panels.end; ++p) {
        for (int64_t d = 0; d < dim / PANEL; ++d) {
            copy_values(memory + (d * SPAN_PANELS + p) * PANEL_ITEMS, in, p, d);
        }
    }
}

}  // namespace TACO_ISA

#endif
