// The panels of one span of one KV head, where they lie or widened to what products read.
#pragma once

#include "attention_plan.h"
#include "panel_dot.h"
#include "softmax_rows.h"

namespace TACO_ISA {

template <class Element>
struct SpanPanels {
    Range panels;                        // those of the span that are read
    const Element* keys[SPAN_PANELS];    // [key_depth / g][16][g] each
    const Element* values[SPAN_PANELS];  // [16 / g][16][g] each, of dims 0 to 15
    int64_t value_stride;                // items from there to the next sixteen dims
    int64_t key_depth;                   // head_dim, padded
};

template <class Element>
inline SpanPanels<Element> locate_span(const Attention& attention, const RowTile& tile,
                                       int64_t span, Range panels, SpanScales& scales) {
    const KVCache& cache = attention.cache;
    const Batch& batch = attention.batch;
    const int32_t* table = batch.block_tables + tile.sequence * batch.block_table_stride;
    SpanPanels<Element> out;
    out.panels = panels;
    out.value_stride = cache.block_size * PANEL;
    out.key_depth = cache.padded_dim();
    for (int64_t p = panels.begin; p < panels.end; ++p) {
        const int64_t token = span * SPAN + p * PANEL;
        const int64_t block = table[token / cache.block_size];
        const int64_t offset = token % cache.block_size;
        out.keys[p] = reinterpret_cast<const Element*>(
                          cache.keys(block, attention.layer, tile.kv_head)) +
                      offset * cache.padded_dim();
        out.values[p] = reinterpret_cast<const Element*>(
                            cache.values(block, attention.layer, tile.kv_head)) +
                        offset * PANEL;
        const bool scaled = cache.type == DType::i8;
        scales.keys[p] =
            scaled ? cache.key_scales(block, attention.layer, tile.kv_head) + offset : nullptr;
        scales.values[p] =
            scaled ? cache.value_scales(block, attention.layer, tile.kv_head) + offset : nullptr;
    }
    return out;
}

template <class Source>
inline void widen_panel(Bf16Operand* out, const Source* in, int64_t items) {
    for (int64_t i = 0; i < items; i += 2 * PANEL) store_pairs(out + i, load_pairs(in + i));
}

// Keys in memory of [SPAN, key_depth]; what lies between padded_dim and key_depth becomes 0.
template <class Source>
inline void widen_keys(SpanPanels<Bf16Operand>& out, const SpanPanels<Source>& in,
                       int64_t key_depth, Bf16Operand* memory) {
    const int64_t items = in.key_depth * PANEL;
    out.key_depth = key_depth;
    for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
        Bf16Operand* panel = memory + p * PANEL * key_depth;
        widen_panel(panel, in.keys[p], items);
        std::fill(panel + items, panel + key_depth * PANEL, Bf16Operand(0));
        out.keys[p] = panel;
    }
}

// Values in memory of [padded_dim, SPAN], so that sixteen dims of all tokens stand in one piece.
// The panels of `out` that `in` has not become 0.
template <class Source>
inline void widen_values(SpanPanels<Bf16Operand>& out, const SpanPanels<Source>& in,
                         int64_t padded_dim, Bf16Operand* memory) {
    constexpr int64_t items = PANEL * PANEL;
    out.value_stride = SPAN * PANEL;
    for (int64_t p = out.panels.begin; p < out.panels.end; ++p) {
        const bool is_there = p >= in.panels.begin && p < in.panels.end;
        out.values[p] = memory + p * items;
        for (int64_t d = 0; d < padded_dim / PANEL; ++d) {
            Bf16Operand* panel = memory + p * items + d * out.value_stride;
            if (is_there) {
                widen_panel(panel, in.values[p] + d * in.value_stride, items);
            } else {
                std::fill_n(panel, items, Bf16Operand(0));
            }
        }
    }
}

}  // namespace TACO_ISA
