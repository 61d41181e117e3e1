// Attention of a query block by vectors, span by span.
#pragma once

#include "attention/panel_products.h"
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
    // How memory is read ahead. Products of int8 take longer than reads of memory, and fetch lines
    // beside their steps. Longer numbers keep memory busy, which is fastest in runs of lines
    // between products; so does float8, which was 4 to 13% slower with lines.
    template <class Element>
    static constexpr bool FETCHES_LINES = std::is_same_v<Element, int8_t>;

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
                std::is_same_v<Source, Bf16Operand> || kv.type == KVType::f32 ? 0 : SPAN;
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

    VectorAttention(const Attention& attention, const QueryBlock& queries,
                    const ItemNeighbors& neighbors, const Scratch& scratch)
        : attention_(attention),
          neighbors_(neighbors),
          kv_(attention.cache.entry(attention.entry)),
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

    // Merges the sums of the spans into `total`, which holds those of earlier ones if `continues`.
    void attend_spans(SpanRange spans, bool continues) {
        run(spans, [&](int64_t span, const Spans& located) {
            attend_span(span, located, sums(scratch_.span));
            merge(total(), sums(scratch_.span), span == spans.begin && !continues);
        });
    }
    // Keeps the sums of each span in a separate record: record(span) is its memory.
    template <class Record>
    void record_spans(SpanRange spans, Record record) {
        run(spans, [&](int64_t span, const Spans& located) {
            attend_span(span, located, sums(record(span)));
        });
    }

private:
    struct Spans {
        SpanPanels<Source>* now;
        SpanPanels<Source>* next;  // maybe of the thread's next item; null: none
        bool is_first;             // nothing was prefetched
    };

    // Calls attend(span, located).
    template <class Attend>
    void run(SpanRange spans, Attend attend) {
        SpanPanels<Source> located[2];
        const auto locate = [&](int64_t s) {
            located[s % 2] = locator_.locate(s, rows_.panels_seen(0, rows_.count(), s));
            return &located[s % 2];
        };
        SpanPanels<Source>* now = locate(spans.begin);
        for (int64_t s = spans.begin; s < spans.end; ++s) {
            SpanPanels<Source>* next = s + 1 < spans.end ? locate(s + 1) : nullptr;
            if (next == nullptr && neighbors_.next) {
                next = &located[(s + 1) % 2];
                *next = locate_first<Source>(attention_, *neighbors_.next);
            }
            attend(s, Spans{now, next, s == spans.begin && !neighbors_.is_prefetched});
            now = next;
        }
    }

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

    void attend_span(int64_t span, const Spans& spans, const SpanSums& out) {
        if (rows_.is_sparse() && find_seen_blocks(span) == 0) return SpanSums(out).clear();
        const SpanPanels<Source>& source = *spans.now;
        next_ = spans.next;
        key_fetch_ = next_ ? SpanFetch<Source>::keys(*next_) : SpanFetch<Source>();
        if (std::is_same_v<Source, Operand> || rows_.count() <= 2 * ROWS_AT_ONCE<Source>) {
            is_first_span_ = spans.is_first;
            if (FETCHES_LINES<Source> && !kv_.is_latent) {
                value_fetch_ = SpanFetch<Source>();
                if (next_) key_fetch_ = SpanFetch<Source>::keys(*next_, panels_left(source));
            } else {
                value_fetch_ = SpanFetch<Source>::values(source);
            }
            return attend_panels(span, source, source, out);
        }
        if constexpr (!std::is_same_v<Source, Operand>) {
            SpanPanels<Operand> wide;
            wide.panels = source.panels;
            widen_keys(wide, source, scratch_.keys);
            if (!kv_.is_latent) {
                widen_values(wide, source, kv_.padded_value_dim(), scratch_.values);
            }
            value_fetch_ = SpanFetch<Source>();
            is_first_span_ = false;
            attend_panels(span, source, wide, out);
        }
    }

    // The next span's panels of keys that the products with `now`'s values do not fetch.
    Range panels_left(const SpanPanels<Source>& now) const {
        const Range next = next_->panels;
        return {std::min(next.begin + now.panels.size(), next.end), next.end};
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
        // Two thirds of the values, and later of the next keys, are fetched by products, the rest
        // by the softmax.
        const int64_t bytes = value_fetch_.bytes() * 4 / 3 / std::max<int64_t>(1, in.panels.size());
        for (int64_t p = in.panels.begin; p < in.panels.end; p += 2) {
            const bool has_two = p + 1 < in.panels.end;
            if (is_first_span_) {
                fetch_keys_ahead(in, p);
                if (has_two) fetch_keys_ahead(in, p + 1);
            }
            value_fetch_.fetch(bytes);
            for_row_blocks<PAIR_ROWS<Element>>(rows_.count(), [&](int64_t first, auto count) {
                const Range seen = rows_.panels_seen(first, count, span);
                const bool left = p >= seen.begin && p < seen.end && any_row_sees(p);
                const bool right =
                    has_two && p + 1 >= seen.begin && p + 1 < seen.end && any_row_sees(p + 1);
                if (left && right) {
                    score<2>(first, count, in, p);
                } else if (left) {
                    score<1>(first, count, in, p);
                } else if (right) {
                    score<1>(first, count, in, p + 1);
                }
            });
        }
    }

    template <int P, int R, class Element>
    void score(int64_t first, std::integral_constant<int, R>, const SpanPanels<Element>& in,
               int64_t panel) {
        F32 sums[P][R];
        for (auto& row : sums) {
            for (F32& sum : row) sum = zero();
        }
        const Operand* queries = scratch_.queries + first * query_stride_;
        const Element* keys[P];
        for (int i = 0; i < P; ++i) keys[i] = in.keys[panel + i];
        if (FETCHES_LINES<Element> && !kv_.is_latent && first == 0) {
            for (int64_t d = 0; d < in.key_depth; d += PANEL) {
                const int64_t dim_panel = std::min(d / PANEL, in.value_panels - 1);
                FetchLines<Element, P> fetch;
                for (int i = 0; i < P; ++i) {
                    fetch.panels[i] = in.values[panel + i] + dim_panel * in.value_stride;
                }
                dot_panels(sums, queries + d, query_stride_, keys, PANEL, fetch);
                for (int i = 0; i < P; ++i) keys[i] += PANEL * PANEL;
            }
        } else {
            dot_panels(sums, queries, query_stride_, keys, in.key_depth, NothingBeside());
        }
        for (int r = 0; r < R; ++r) {
            for (int p = 0; p < P; ++p) {
                store(scratch_.scores + RowOrder::score(first + r, panel + p), sums[p][r]);
            }
        }
    }

    void weigh(int64_t span, const SpanPanels<Source>& source, const SpanSums& out) {
        SpanScales scales = gather_scales(source, scratch_.key_scales, scratch_.value_scales);
        const int64_t value_bytes = ceil_div(value_fetch_.bytes(), rows_.count());
        const int64_t key_bytes = key_fetch_.bytes() / 3 / rows_.count();
        const auto view = [&](int64_t r) {
            value_fetch_.fetch(value_bytes);
            key_fetch_.fetch(key_bytes);
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
        const int64_t products = in.panels.size() * ceil_div(out.padded_dim, 2 * PANEL);
        key_fetch_bytes_ = key_fetch_.bytes() / std::max<int64_t>(1, products);
        int64_t d = 0;
        for (; d + PANEL < out.padded_dim; d += 2 * PANEL) {
            for_row_blocks<PAIR_ROWS<Element>>(rows_.count(), [&](int64_t first, auto count) {
                sum_panels<2>(span, d, first, count, in, out);
            });
        }
        if (d == out.padded_dim) return;
        for_row_blocks<PAIR_ROWS<Element>>(rows_.count(), [&](int64_t first, auto count) {
            sum_panels<1>(span, d, first, count, in, out);
        });
    }

    template <int P, int R, class Element>
    void sum_panels(int64_t span, int64_t d, int64_t first, std::integral_constant<int, R>,
                    const SpanPanels<Element>& in, const SpanSums& out) {
        const Range seen = rows_.panels_seen(first, R, span);
        F32 sums[P][R];
        for (auto& row : sums) {
            for (F32& sum : row) sum = zero();
        }
        for (int64_t p = seen.begin; p < seen.end; ++p) {
            if (!any_row_sees(p)) continue;
            const Operand* weights = scratch_.weights + RowOrder::weight(first, p);
            const Element* panels[P];
            for (int i = 0; i < P; ++i) {
                panels[i] = in.values[p] + (d / PANEL + i) * in.value_stride;
            }
            key_fetch_.fetch(key_fetch_bytes_);
            if constexpr (FETCHES_LINES<Element>) {
                FetchLines<Element, P> fetch;
                if (first == 0 && find_next_keys(fetch, p - in.panels.begin, d)) {
                    dot_panels(sums, weights, RowOrder::STRIDE, panels, PANEL, fetch);
                    continue;
                }
            }
            dot_panels(sums, weights, RowOrder::STRIDE, panels, PANEL, NothingBeside());
        }
        float* values = out.values + first * out.padded_dim + d;
        for (int r = 0; r < R; ++r) {
            for (int i = 0; i < P; ++i) store(values + r * out.padded_dim + i * PANEL, sums[i][r]);
        }
    }

    // Finds the dims from `d` on of the next span's panel `index` of keys; returns whether they
    // exist.
    template <int P>
    bool find_next_keys(FetchLines<Source, P>& out, int64_t index, int64_t d) const {
        if (!next_ || index >= next_->panels.size() || d + P * PANEL > next_->key_depth)
            return false;
        const Source* keys = next_->keys[next_->panels.begin + index] + d * PANEL;
        for (int i = 0; i < P; ++i) out.panels[i] = keys + i * PANEL * PANEL;
        return true;
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
            sum_latent_panels<ROWS_AT_ONCE<Operand>>(
                span, d, out, [&](int64_t p) { return latents + p * PANEL * PANEL; });
        }
    }

    // Sums sixteen dims of the values; panel(p) is their panel of tokens.
    template <int Rows, class Panel>
    void sum_latent_panels(int64_t span, int64_t d, const SpanSums& out, Panel panel) {
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

    const Attention& attention_;
    const ItemNeighbors neighbors_;
    const EntryKV kv_;
    const Scratch& scratch_;
    const QueryRows rows_;
    const SpanLocator<Source> locator_;
    const int64_t query_stride_;
    const SpanPanels<Source>* next_ = nullptr;   // the next span; null: none
    SpanFetch<Source> value_fetch_, key_fetch_;  // of this span; of the next one
    int64_t key_fetch_bytes_ = 0;                // with each product of values
    bool is_first_span_ = false;                 // its keys were not fetched before
    uint32_t any_bits_ = ALL_PANELS;  // panels that any row sees by the block-sparse pattern
};

}  // namespace TACO_ISA
