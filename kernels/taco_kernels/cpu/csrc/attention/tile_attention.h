// Attention of one tile of rows over one span.
#pragma once

#include <cmath>

#include "attention/attention_plan.h"
#include "attention/online_softmax.h"
#include "attention/softmax_rows.h"
#include "attention/span_panels.h"
#include "attention/tile_product.h"
#include "attention/transpose_panel.h"
#include "runtime/arena.h"

namespace TACO_ISA {

// Scratch memory of one thread.
struct AttentionScratch {
    void* queries;         // [rows, key_depth] operands
    float* scores;         // [rows, SCORE_STRIDE]
    void* weights;         // the same of operands, unless these are floats: then the
                           // scores become weights
    Range* seen;           // [rows]
    uint32_t* panel_bits;  // [rows], as SoftmaxRow's
    Bf16Operand* keys;     // of a span, widened
    Bf16Operand* values;   // the same
    void* latents;         // [2 * PANEL, SPAN] operands: some dims of a span's latent
                           // values
    float* total;          // SpanSums
    float* span;           // SpanSums

    static int64_t key_depth(const EntryKV& kv) { return round_up(kv.key_dim, 32); }

    AttentionScratch(Arena& arena, const EntryKV& kv, int64_t rows) {
        const int64_t widened = kv.type == DType::f32 ? 0 : SPAN;
        const int64_t sums = SpanSums::num_floats(rows, kv.padded_value_dim());
        queries = arena.take<float>(rows * key_depth(kv));
        scores = arena.take<float>(rows * SCORE_STRIDE);
        weights = arena.take<float>(rows * SCORE_STRIDE);
        seen = arena.take<Range>(rows);
        panel_bits = arena.take<uint32_t>(rows);
        keys = arena.take<Bf16Operand>(widened * key_depth(kv));
        values = arena.take<Bf16Operand>(kv.is_latent ? 0 : widened * kv.padded_value_dim());
        latents = arena.take<float>(kv.is_latent ? SPAN * 2 * PANEL : 0);
        total = arena.take<float>(sums);
        span = arena.take<float>(sums);
    }
};

// One tile of rows. `Source` is the element type of the cache.
template <class Source>
class TileAttention {
    using Operand = OperandOf<Source>;

public:
    TileAttention(const Attention& attention, const RowTile& tile, const AttentionScratch& scratch)
        : attention_(attention),
          kv_(attention.cache.entry(attention.entry)),
          tile_(tile),
          scratch_(scratch),
          group_(attention.num_heads / kv_.num_heads),
          rows_(tile.num_tokens * group_),
          is_sparse_(attention.block_sparse.block_size > 0),
          locator_(attention, tile),
          queries_(static_cast<Operand*>(scratch.queries)),
          query_stride_(scratch.key_depth(kv_)) {
        if constexpr (std::is_same_v<Operand, float>) {
            weights_ = scratch.scores;
        } else {
            weights_ = static_cast<Operand*>(scratch.weights);
        }
        encode_queries();
    }

    SpanSums sums(float* memory) const { return SpanSums(memory, rows_, kv_.padded_value_dim()); }

    // Computes the sums of one span.
    void attend_span(int64_t span, const SpanSums& out) {
        const Range panels = find_seen(span);
        if (is_sparse_ && find_seen_blocks(span) == 0) {
            SpanSums(out).clear();
            return;
        }
        SpanScales scales;
        const auto source = locator_.locate(span, panels, scales);
#ifdef TACO_HAS_TILES
        if constexpr (!std::is_same_v<Source, float>) {
            return attend_by_tiles(span, source, scales, out);
        }
#endif
        if constexpr (std::is_same_v<Source, Operand>) {
            attend_panels(span, source, scales, out);
        } else if (rows_ <= 2 * ROWS_AT_ONCE<Source>) {
            attend_panels(span, source, scales, out);
        } else {
            SpanPanels<Operand> wide;
            wide.panels = panels;
            widen_keys(wide, source, source.key_depth, scratch_.keys);
            if (!kv_.is_latent) {
                widen_values(wide, source, kv_.padded_value_dim(), scratch_.values);
            }
            attend_panels(span, wide, scales, out);
        }
    }

private:
    void encode_queries() {
        const int64_t dim = kv_.key_dim;
        for (int64_t r = 0; r < rows_; ++r) {
            const float* in = attention_.queries +
                              (tile_.first_token + r / group_) * attention_.query_stride +
                              (tile_.kv_head * group_ + r % group_) * dim;
            Operand* out = queries_ + r * query_stride_;
            for (int64_t d = 0; d < query_stride_; d += LANES) {
                float padded[LANES] = {};
                if (d < dim) std::copy_n(in + d, std::min<int64_t>(LANES, dim - d), padded);
                if constexpr (std::is_same_v<Operand, float>) {
                    store(out + d, load(padded));
                } else {
                    store_bf16_operand(out + d, load(padded));
                }
            }
        }
    }

    // Sets which tokens of the span each row sees; returns the panels that any row sees.
    Range find_seen(int64_t span) {
        const int64_t start = span * SPAN, window = attention_.window;
        const auto clamp = [](int64_t x) { return std::clamp<int64_t>(x, 0, SPAN); };
        for (int64_t r = 0; r < rows_; ++r) {
            const int64_t position = tile_.first_position + r / group_ - start;
            const int64_t begin = window ? position - window + 1 : 0;
            scratch_.seen[r] = {clamp(begin), clamp(position + 1)};
        }
        return panels_seen(0, rows_);
    }

    // Sets which panels each row sees by the block-sparse pattern; returns the
    // bits of those that any row sees.
    uint32_t find_seen_blocks(int64_t span) {
        const BlockSparse& sparse = attention_.block_sparse;
        tile_bits_ = 0;
        for (int64_t r = 0; r < rows_; ++r) {
            const int64_t own = (tile_.first_position + r / group_) / sparse.block_size;
            const int64_t head = tile_.kv_head * group_ + r % group_;
            const int64_t shift = sparse.head_offset + head * sparse.head_step + 1;
            uint32_t bits = 0;
            for (int64_t p = 0; p < SPAN_PANELS; ++p) {
                const int64_t block = (span * SPAN + p * PANEL) / sparse.block_size;
                const bool is_seen =
                    own - block < sparse.num_local_blocks || (block + shift) % sparse.stride == 0;
                bits |= uint32_t(is_seen) << p;
            }
            scratch_.panel_bits[r] = bits;
            tile_bits_ |= bits;
        }
        return tile_bits_;
    }

    bool any_row_sees(int64_t p) const { return !is_sparse_ || tile_bits_ >> p & 1; }

    // The panels that any of `count` rows sees: both ends of a row's range grow with the rows.
    Range panels_seen(int64_t first, int64_t count) const {
        const int64_t begin = scratch_.seen[first].begin;
        const int64_t end = scratch_.seen[first + count - 1].end;
        return {begin / PANEL, ceil_div(end, PANEL)};
    }

    template <class Element>
    void attend_panels(int64_t span, const SpanPanels<Element>& in, const SpanScales& scales,
                       const SpanSums& out) {
        score_panels(in);
        weigh(span, in.panels, scales, out);
        if (kv_.is_latent) {
            sum_latents(in, out);
        } else {
            sum_values(in, out);
        }
    }

    template <class Element>
    void score_panels(const SpanPanels<Element>& in) {
        for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
            if (!any_row_sees(p)) continue;
            if (std::is_same_v<Element, Source>) fetch_ahead(in, p);
            for_row_blocks<ROWS_AT_ONCE<Element>>(rows_, [&](int64_t first, auto count) {
                const Range seen = panels_seen(first, count);
                if (p < seen.begin || p >= seen.end) return;
                F32 sums[count];
                for (F32& sum : sums) sum = zero();
                dot_panel(sums, queries_ + first * query_stride_, query_stride_, in.keys[p],
                          in.key_depth);
                float* scores = scratch_.scores + first * SCORE_STRIDE + p * PANEL;
                for (int r = 0; r < count; ++r) store(scores + r * SCORE_STRIDE, sums[r]);
            });
        }
    }

    void weigh(int64_t span, Range panels, const SpanScales& scales, const SpanSums& out) {
        for (int64_t r = 0; r < rows_; ++r) {
            SoftmaxRow row;
            row.scores = scratch_.scores + r * SCORE_STRIDE;
            row.seen = scratch_.seen[r];
            row.panels = panels;
            row.panel_bits = is_sparse_ ? scratch_.panel_bits[r] : ALL_PANELS;
            const int64_t position = tile_.first_position + r / group_;
            row.last_token = position - span * SPAN;
            row.scale = attention_.scale * length_factor(position);
            const int64_t head = tile_.kv_head * group_ + r % group_;
            row.slope = attention_.alibi ? attention_.alibi[head] : 0;
            row.best = out.best + r;
            row.weight = out.weight + r;
            softmax_row(attention_, scales, row, weights_ + r * SCORE_STRIDE);
        }
    }

    float length_factor(int64_t position) const {
        if (attention_.log_n == 0 || position < attention_.log_n) return 1;
        return float(std::log(double(position + 1)) / std::log(double(attention_.log_n)));
    }

    template <class Element>
    void sum_values(const SpanPanels<Element>& in, const SpanSums& out) {
        for (int64_t d = 0; d < out.padded_dim; d += PANEL) {
            for_row_blocks<ROWS_AT_ONCE<Element>>(rows_, [&](int64_t first, auto count) {
                const Range seen = panels_seen(first, count);
                F32 sums[count];
                for (F32& sum : sums) sum = zero();
                for (int64_t p = seen.begin; p < seen.end; ++p) {
                    if (!any_row_sees(p)) continue;
                    dot_panel(sums, weights_ + first * SCORE_STRIDE + p * PANEL, SCORE_STRIDE,
                              in.values[p] + d / PANEL * in.value_stride, PANEL);
                }
                float* values = out.values + first * out.padded_dim + d;
                for (int r = 0; r < count; ++r) store(values + r * out.padded_dim, sums[r]);
            });
        }
    }

    // As sum_values, where a value is the beginning of its key. Sixteen dims of all tokens are
    // transposed at a time, so that they stay in the nearest cache for all rows.
    template <class Element>
    void sum_latents(const SpanPanels<Element>& in, const SpanSums& out) {
        auto* const latents = static_cast<Operand*>(scratch_.latents);
        for (int64_t d = 0; d < out.padded_dim; d += PANEL) {
            for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
                if (any_row_sees(p)) {
                    transpose_panel(latents + p * PANEL * PANEL, in.keys[p] + d * PANEL);
                }
            }
            for_row_blocks<ROWS_AT_ONCE<Operand>>(rows_, [&](int64_t first, auto count) {
                const Range seen = panels_seen(first, count);
                F32 sums[count];
                for (F32& sum : sums) sum = zero();
                for (int64_t p = seen.begin; p < seen.end; ++p) {
                    if (!any_row_sees(p)) continue;
                    dot_panel(sums, weights_ + first * SCORE_STRIDE + p * PANEL, SCORE_STRIDE,
                              latents + p * PANEL * PANEL, PANEL);
                }
                float* values = out.values + first * out.padded_dim + d;
                for (int r = 0; r < count; ++r) store(values + r * out.padded_dim, sums[r]);
            });
        }
    }

#ifdef TACO_HAS_TILES
    // An AMX tile takes 32 tokens per step of the values' product, so panels are read in pairs.
    void attend_by_tiles(int64_t span, const SpanPanels<Source>& source, const SpanScales& scales,
                         const SpanSums& out) {
        SpanPanels<bf16> in;
        in.panels = {source.panels.begin / 2 * 2, round_up(source.panels.end, 2)};
        if constexpr (std::is_same_v<Source, bf16>) {
            if (source.key_depth % TILE_K == 0) {
                in.key_depth = source.key_depth;
                for (int64_t p = source.panels.begin; p < source.panels.end; ++p) {
                    fetch_ahead(source, p);
                    in.keys[p] = source.keys[p];
                }
            } else {
                widen_keys(in, source, query_stride_, scratch_.keys);
            }
        } else {
            widen_keys(in, source, query_stride_, scratch_.keys);
        }
        TileShapes shapes;
        for (int64_t first = 0; first < rows_; first += TILE_BLOCK_ROWS) {
            const int64_t count = std::min(TILE_BLOCK_ROWS, rows_ - first);
            shapes.set_rows(count);
            score_by_tiles(in, first, count);
        }
        weigh(span, in.panels, scales, out);
        if (kv_.is_latent) return sum_latents_by_tiles(source.panels, in, shapes, out);
        widen_values(in, source, out.padded_dim, scratch_.values);
        for (int64_t first = 0; first < rows_; first += TILE_BLOCK_ROWS) {
            const int64_t count = std::min(TILE_BLOCK_ROWS, rows_ - first);
            shapes.set_rows(count);
            sum_values_by_tiles(in, first, count, {0, out.padded_dim}, out);
        }
    }

    void score_by_tiles(const SpanPanels<bf16>& in, int64_t first, int64_t count) {
        const Range seen = panels_seen(first, count);
        TileProduct product;
        product.rows = queries_ + first * query_stride_;
        product.row_stride = query_stride_;
        product.k = in.key_depth;
        product.out_stride = SCORE_STRIDE;
        for (int64_t p = seen.begin; p < seen.end; p += 2) {
            const int64_t num_panels = std::min<int64_t>(2, seen.end - p);
            if (!any_row_sees(p) && !(num_panels == 2 && any_row_sees(p + 1))) continue;
            product.panels[0] = in.keys[p];
            product.panels[1] = num_panels == 2 ? in.keys[p + 1] : nullptr;
            product.out = scratch_.scores + first * SCORE_STRIDE + p * PANEL;
            multiply_tiles(product, count, num_panels);
        }
    }

    // As sum_latents, 32 dims at a time. `read`: the panels of `in` with keys; a last one without a
    // pair gets zeros beside it.
    void sum_latents_by_tiles(Range read, const SpanPanels<bf16>& in, TileShapes& shapes,
                              const SpanSums& out) {
        auto* const latents = static_cast<bf16*>(scratch_.latents);
        constexpr int64_t items = PANEL * PANEL;
        SpanPanels<bf16> values = in;
        values.value_stride = SPAN * PANEL;
        for (int64_t d = 0; d < out.padded_dim; d += 2 * PANEL) {
            const int64_t num_panels = std::min<int64_t>(2, (out.padded_dim - d) / PANEL);
            for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
                for (int64_t i = 0; i < num_panels; ++i) {
                    bf16* panel = latents + i * values.value_stride + p * items;
                    if (p >= read.begin && p < read.end) {
                        transpose_block(panel, in.keys[p] + (d + i * PANEL) * PANEL);
                    } else {
                        std::fill_n(panel, items, bf16(0));
                    }
                }
                values.values[p] = latents + p * items;
            }
            for (int64_t first = 0; first < rows_; first += TILE_BLOCK_ROWS) {
                const int64_t count = std::min(TILE_BLOCK_ROWS, rows_ - first);
                shapes.set_rows(count);
                sum_values_by_tiles(values, first, count, {d, d + num_panels * PANEL}, out);
            }
        }
    }

    void sum_values_by_tiles(const SpanPanels<bf16>& in, int64_t first, int64_t count, Range dims,
                             const SpanSums& out) {
        Range seen = panels_seen(first, count);
        seen = {seen.begin / 2 * 2, round_up(seen.end, 2)};
        TileProduct product;
        product.rows = weights_ + first * SCORE_STRIDE + seen.begin * PANEL;
        product.row_stride = SCORE_STRIDE;
        product.k = (seen.end - seen.begin) * PANEL;
        product.out_stride = out.padded_dim;
        for (int64_t d = dims.begin; d < dims.end; d += 2 * PANEL) {
            const int64_t num_panels = std::min<int64_t>(2, (dims.end - d) / PANEL);
            for (int64_t i = 0; i < num_panels; ++i) {
                product.panels[i] =
                    in.values[seen.begin] + ((d - dims.begin) / PANEL + i) * in.value_stride;
            }
            product.out = out.values + first * out.padded_dim + d;
            multiply_tiles(product, count, num_panels);
        }
    }
#endif

    const Attention& attention_;
    const EntryKV kv_;
    const RowTile tile_;
    const AttentionScratch& scratch_;
    const int64_t group_, rows_;
    const bool is_sparse_;
    uint32_t tile_bits_ = 0;  // with a block-sparse pattern: panels that any row sees
    const SpanLocator<Source> locator_;
    Operand* const queries_;
    const int64_t query_stride_;
    Operand* weights_;
};

}  // namespace TACO_ISA
