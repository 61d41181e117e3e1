// Attention of a query block by vectors, span by span.
#pragma once

#include "attention/query_rows.h"
#include "attention/span_panels.h"
#include "attention/transpose_panel.h"
#include "isa/partial_vectors.h"
#include "runtime/arena.h"

namespace TACO_ISA {

// `Source` is the element type of the cache.
template <class Source>
class VectorAttention {
    using Operand = OperandOf<Source>;

public:
    // Memory of one thread.
    struct Scratch {
        Operand* queries;      // [rows, padded_key_dim]
        float* scores;         // as RowOrder
        Operand* weights;      // the same; the scores' own memory if it holds floats
        uint32_t* panel_bits;  // [rows], of a block-sparse pattern
        int32_t* positions;    // [rows]
        float* scales;         // [rows]
        float* key_scales;     // [SPAN]
        float* value_scales;   // [SPAN]
        Bf16Operand* keys;     // of a span, widened
        Bf16Operand* values;   // the same
        Operand* latents;      // [PANEL, SPAN]: some dims of a span's latent values
        float* total;          // SpanSums
        float* span;           // SpanSums

        Scratch(Arena& arena, const EntryKV& kv, int64_t rows) {
            const int64_t widened =
                std::is_same_v<Source, Bf16Operand> || kv.type == DType::f32 ? 0 : SPAN;
            const int64_t sums = SpanSums::num_floats(rows, kv.padded_value_dim());
            queries = arena.take<Operand>(rows * kv.padded_key_dim());
            scores = arena.take<float>(rows * RowOrder::STRIDE);
            if constexpr (std::is_same_v<Operand, float>) {
                weights = scores;
            } else {
                weights = arena.take<Operand>(rows * RowOrder::STRIDE);
            }
            panel_bits = arena.take<uint32_t>(rows);
            positions = arena.take<int32_t>(rows);
            scales = arena.take<float>(rows);
            key_scales = arena.take<float>(SPAN);
            value_scales = arena.take<float>(SPAN);
            keys = arena.take<Bf16Operand>(widened * kv.padded_key_dim());
            values = arena.take<Bf16Operand>(kv.is_latent ? 0 : widened * kv.padded_value_dim());
            latents = arena.take<Operand>(kv.is_latent ? SPAN * PANEL : 0);
            total = arena.take<float>(sums);
            span = arena.take<float>(sums);
        }
    };

    static void begin_thread() {}

    VectorAttention(const Attention& attention, const QueryBlock& queries, const Scratch& scratch)
        : kv_(attention.cache.entry(attention.entry)),
          scratch_(scratch),
          rows_(attention, queries, scratch.positions, scratch.scales),
          locator_(attention, queries),
          query_stride_(kv_.padded_key_dim()) {
        encode_queries();
    }

    SpanSums total() const { return sums(scratch_.total); }
    SpanSums sums(float* memory) const {
        return SpanSums(memory, rows_.count(), kv_.padded_value_dim());
    }

    // Merges the sums of the spans into `total`.
    void attend_spans(SpanRange spans) {
        for (int64_t s = spans.begin; s < spans.end; ++s) {
            attend_span(s, sums(scratch_.span));
            merge(total(), sums(scratch_.span), s == spans.begin);
        }
    }
    // Keeps the sums of each span in a separate record: record(span) is its memory.
    template <class Record>
    void attend_spans(SpanRange spans, Record record) {
        for (int64_t s = spans.begin; s < spans.end; ++s) attend_span(s, sums(record(s)));
    }

private:
    void encode_queries() {
        const int64_t dim = kv_.key_dim;
        for (int64_t r = 0; r < rows_.count(); ++r) {
            const float* in = rows_.query(r, dim);
            Operand* out = scratch_.queries + r * query_stride_;
            for (int64_t d = 0; d < query_stride_; d += LANES) {
                const F32 numbers = load_lanes(in + d, std::min<int64_t>(LANES, dim - d));
                if constexpr (std::is_same_v<Operand, float>) {
                    store(out + d, numbers);
                } else {
                    store_bf16_operand(out + d, numbers);
                }
            }
        }
    }

    void attend_span(int64_t span, const SpanSums& out) {
        if (rows_.is_sparse() && find_seen_blocks(span) == 0) return SpanSums(out).clear();
        const auto source = locator_.locate(span, rows_.panels_seen(0, rows_.count(), span));
        if constexpr (std::is_same_v<Source, Operand>) {
            attend_panels(span, source, source, out);
        } else if (rows_.count() <= 2 * ROWS_AT_ONCE<Source>) {
            attend_panels(span, source, source, out);
        } else {
            SpanPanels<Operand> wide;
            wide.panels = source.panels;
            widen_keys(wide, source, source.key_depth, scratch_.keys);
            if (!kv_.is_latent) {
                widen_values(wide, source, kv_.padded_value_dim(), scratch_.values);
            }
            attend_panels(span, source, wide, out);
        }
    }

    // Sets which panels each row sees by the block-sparse pattern; returns the bits of those that
    // any row sees.
    uint32_t find_seen_blocks(int64_t span) {
        any_bits_ = 0;
        for (int64_t r = 0; r < rows_.count(); ++r) {
            scratch_.panel_bits[r] = rows_.panel_bits(r, span);
            any_bits_ |= scratch_.panel_bits[r];
        }
        return any_bits_;
    }

    bool any_row_sees(int64_t p) const { return any_bits_ >> p & 1; }

    // `in`: the panels of `source`, or what they were widened to.
    template <class Element>
    void attend_panels(int64_t span, const SpanPanels<Source>& source,
                       const SpanPanels<Element>& in, const SpanSums& out) {
        score_panels(span, in);
        weigh(span, source, out);
        if (kv_.is_latent) {
            sum_latents(span, in, out);
        } else {
            sum_values(span, in, out);
        }
    }

    template <class Element>
    void score_panels(int64_t span, const SpanPanels<Element>& in) {
        for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
            if (!any_row_sees(p)) continue;
            if (std::is_same_v<Element, Source>) fetch_ahead(in, p);
            for_row_blocks<ROWS_AT_ONCE<Element>>(rows_.count(), [&](int64_t first, auto count) {
                const Range seen = rows_.panels_seen(first, count, span);
                if (p < seen.begin || p >= seen.end) return;
                F32 sums[count];
                for (F32& sum : sums) sum = zero();
                dot_panel(sums, scratch_.queries + first * query_stride_, query_stride_, in.keys[p],
                          in.key_depth);
                for (int r = 0; r < count; ++r) {
                    store(scratch_.scores + RowOrder::score(first + r, p), sums[r]);
                }
            });
        }
    }

    void weigh(int64_t span, const SpanPanels<Source>& source, const SpanSums& out) {
        SpanScales scales = gather_scales(source, scratch_.key_scales, scratch_.value_scales);
        const auto view = [&](int64_t r) {
            const uint32_t bits = rows_.is_sparse() ? scratch_.panel_bits[r] : ALL_PANELS;
            return rows_.view(r, span, bits);
        };
        if (rows_.needs_finish()) {
            for (int64_t r = 0; r < rows_.count(); ++r) {
                finish_scores<RowOrder>(scratch_.scores, r, view(r), rows_.terms(r, span),
                                        scales.keys);
            }
            scales.keys = nullptr;
        }
        weigh_rows<RowOrder>(scratch_.scores, scratch_.weights, scales, rows_.count(),
                             strips_of(source.panels), view, out.best, out.weight);
    }

    template <class Element>
    void sum_values(int64_t span, const SpanPanels<Element>& in, const SpanSums& out) {
        for (int64_t d = 0; d < out.padded_dim; d += PANEL) {
            sum_panels<ROWS_AT_ONCE<Element>>(span, d, out, [&](int64_t p) {
                return in.values[p] + d / PANEL * in.value_stride;
            });
        }
    }

    // As sum_values, where a value is the beginning of its key. Sixteen dims of all tokens are
    // transposed at a time, so that they stay in the nearest cache for all rows.
    template <class Element>
    void sum_latents(int64_t span, const SpanPanels<Element>& in, const SpanSums& out) {
        Operand* const latents = scratch_.latents;
        for (int64_t d = 0; d < out.padded_dim; d += PANEL) {
            for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
                if (any_row_sees(p)) {
                    transpose_panel(latents + p * PANEL * PANEL, in.keys[p] + d * PANEL);
                }
            }
            sum_panels<ROWS_AT_ONCE<Operand>>(
                span, d, out, [&](int64_t p) { return latents + p * PANEL * PANEL; });
        }
    }

    // Sums sixteen dims of the values; panel(p) is their panel of tokens.
    template <int Rows, class Panel>
    void sum_panels(int64_t span, int64_t d, const SpanSums& out, Panel panel) {
        for_row_blocks<Rows>(rows_.count(), [&](int64_t first, auto count) {
            const Range seen = rows_.panels_seen(first, count, span);
            F32 sums[count];
            for (F32& sum : sums) sum = zero();
            for (int64_t p = seen.begin; p < seen.end; ++p) {
                if (!any_row_sees(p)) continue;
                dot_panel(sums, scratch_.weights + RowOrder::weight(first, p), RowOrder::STRIDE,
                          panel(p), PANEL);
            }
            float* values = out.values + first * out.padded_dim + d;
            for (int r = 0; r < count; ++r) store(values + r * out.padded_dim, sums[r]);
        });
    }

    const EntryKV kv_;
    const Scratch& scratch_;
    const QueryRows rows_;
    const SpanLocator<Source> locator_;
    const int64_t query_stride_;
    uint32_t any_bits_ = ALL_PANELS;  // panels that any row sees by the block-sparse pattern
};

}  // namespace TACO_ISA
