// The key and value panels of one span of one KV head, in the cache or widened to operands.
#pragma once

#include "attention/attention_plan.h"
#include "attention/softmax_rows.h"
#include "matmul/panel_dot.h"

namespace TACO_ISA {

// Distance of prefetches, in panels of keys: about the latency of memory.
constexpr int64_t FETCH_AHEAD = 4;
// The hardware prefetcher works within a page of this size; software prefetches there only cost
// time.
constexpr int64_t PAGE_BYTES = 4096;

template <class Element>
struct SpanPanels {
    Range panels;      // of the span, to be read
    int64_t keys_end;  // of `keys`: up to FETCH_AHEAD panels of the next span follow
    const Element* keys[SPAN_PANELS + FETCH_AHEAD];  // [key_depth / g][16][g] each
    const Element* values[SPAN_PANELS];              // [16 / g][16][g] each, of dims 0 to 15
    int64_t value_stride;  // items from one group of sixteen dims to the next
    int64_t value_panels;  // groups of sixteen dims; 0 of latent entries, which have no `values`
    int64_t key_depth;     // key_dim, padded
    // Of tokens, sixteen each; undefined if they have none.
    bool has_scales;
    const float* key_scales[SPAN_PANELS];
    const float* value_scales[SPAN_PANELS];

    bool holds(int64_t panel) const { return panel >= panels.begin && panel < panels.end; }
};

// Finds the panels of a span in the cache.
template <class Element>
class SpanLocator {
public:
    SpanLocator(const Attention& attention, const QueryBlock& queries)
        : kv_(attention.cache.entry(attention.entry)),
          head_(queries.kv_head),
          block_table_(attention.batch.block_tables +
                       queries.sequence * attention.batch.block_table_stride),
          num_panels_(ceil_div(queries.end_position, PANEL)) {}

    SpanPanels<Element> locate(int64_t span, Range panels) const {
        SpanPanels<Element> out;
        out.panels = panels;
        out.keys_end = std::min(panels.end + FETCH_AHEAD, num_panels_ - span * SPAN_PANELS);
        out.value_stride = kv_.block_size * PANEL;
        out.key_depth = kv_.padded_key_dim();
        out.value_panels = kv_.is_latent ? 0 : kv_.padded_value_dim() / PANEL;
        out.has_scales = kv_.has_token_scales();
        const int64_t first_token = span * SPAN + panels.begin * PANEL;
        const int32_t* block = block_table_ + first_token / kv_.block_size;
        int64_t offset = first_token % kv_.block_size;
        for (int64_t p = panels.begin; p < out.keys_end; ++p) {
            out.keys[p] =
                reinterpret_cast<const Element*>(kv_.keys(*block, head_)) + offset * out.key_depth;
            if (p < panels.end) {
                out.values[p] =
                    reinterpret_cast<const Element*>(kv_.values(*block, head_)) + offset * PANEL;
                if (out.has_scales) {
                    out.key_scales[p] = kv_.key_scales(*block, head_) + offset;
                    out.value_scales[p] = kv_.value_scales(*block, head_) + offset;
                }
            }
            offset += PANEL;
            if (offset < kv_.block_size) continue;
            offset = 0;
            ++block;
        }
        return out;
    }

private:
    const EntryKV kv_;
    const int64_t head_;
    const int32_t* const block_table_;
    const int64_t num_panels_;  // of the sequence, up to the block's last token
};

// Copies the scales of a span's tokens to two arrays of [SPAN], 0 where it has no panel. Returns
// none if tokens have none.
template <class Element>
inline SpanScales gather_scales(const SpanPanels<Element>& in, float* keys, float* values) {
    if (sizeof(Element) != 1 || !in.has_scales) return {};
    for (int64_t p = 0; p < SPAN_PANELS; ++p) {
        store(keys + p * PANEL, in.holds(p) ? load(in.key_scales[p]) : zero());
        store(values + p * PANEL, in.holds(p) ? load(in.value_scales[p]) : zero());
    }
    return {keys, values};
}

// Always inlined: GCC takes a function that only prefetches for one without effect and drops its
// calls.
[[gnu::always_inline]] inline void prefetch(const void* memory, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(static_cast<const char*>(memory) + i);
    }
}

// Prefetches later keys than those of panel p.
template <class Element>
[[gnu::always_inline]] inline void fetch_keys_ahead(const SpanPanels<Element>& in, int64_t p) {
    const int64_t key_bytes = in.key_depth * PANEL * sizeof(Element);
    if (key_bytes < PAGE_BYTES && p + FETCH_AHEAD < in.keys_end) {
        prefetch(in.keys[p + FETCH_AHEAD], key_bytes);
    }
}

// Prefetches what is read after key panel p: its values, and later keys.
template <class Element>
[[gnu::always_inline]] inline void fetch_ahead(const SpanPanels<Element>& in, int64_t p) {
    for (int64_t d = 0; d < in.value_panels; ++d) {
        prefetch(in.values[p] + d * in.value_stride, PANEL * PANEL * sizeof(Element));
    }
    fetch_keys_ahead(in, p);
}

// Prefetches a span's keys, or its values, into the L2 cache, some lines at a time beside other
// work, so that memory is read all the time.
template <class Element>
class SpanFetch {
public:
    SpanFetch() = default;

    static SpanFetch keys(const SpanPanels<Element>& in) { return keys(in, in.panels); }
    // Only of some panels.
    static SpanFetch keys(const SpanPanels<Element>& in, Range panels) {
        return SpanFetch(panels, in.keys, 1, 0, in.key_depth * PANEL);
    }
    static SpanFetch values(const SpanPanels<Element>& in) {
        return SpanFetch(in.panels, in.values, in.value_panels, in.value_stride, PANEL * PANEL);
    }

    int64_t bytes() const { return (end_ - panel_) * pieces_ * piece_bytes_; }

    // Prefetches about as many bytes, until nothing is left.
    [[gnu::always_inline]] void fetch(int64_t bytes) {
        for (; bytes > 0 && panel_ < end_; bytes -= 64) {
            __builtin_prefetch(
                reinterpret_cast<const char*>(panels_[panel_] + piece_ * stride_) + offset_, 0, 2);
            offset_ += 64;
            if (offset_ < piece_bytes_) continue;
            offset_ = 0;
            if (++piece_ < pieces_) continue;
            piece_ = 0;
            ++panel_;
        }
    }

private:
    SpanFetch(Range range, const Element* const* panels, int64_t pieces, int64_t stride,
              int64_t items)
        : panels_(panels),
          panel_(range.begin),
          end_(pieces ? range.end : range.begin),
          pieces_(pieces),
          stride_(stride),
          piece_bytes_(items * int64_t(sizeof(Element))) {}

    const Element* const* panels_ = nullptr;
    int64_t panel_ = 0, end_ = 0, piece_ = 0, pieces_ = 0, stride_ = 0;
    int64_t offset_ = 0, piece_bytes_ = 0;
};

// Prefetches panels line by line, beside a product with other panels: as many bytes as it reads.
template <class Element, int P>
struct FetchLines {
    const Element* panels[P];

    [[gnu::always_inline]] void operator()(int64_t i) const {
        for (const Element* panel : panels) __builtin_prefetch(panel + i * PANEL);
    }
};

template <class Source>
inline void widen_panel(Bf16Operand* out, const Source* in, int64_t items) {
    for (int64_t i = 0; i < items; i += 2 * PANEL) store_pairs(out + i, load_pairs(in + i));
}

// Widens keys into memory of [SPAN, key_depth].
template <class Source>
inline void widen_keys(SpanPanels<Bf16Operand>& out, const SpanPanels<Source>& in,
                       Bf16Operand* memory) {
    const int64_t items = in.key_depth * PANEL;
    out.key_depth = in.key_depth;
    for (int64_t p = in.panels.begin; p < in.panels.end; ++p) {
        fetch_ahead(in, p);
        Bf16Operand* panel = memory + p * items;
        widen_panel(panel, in.keys[p], items);
        out.keys[p] = panel;
    }
}

// Widens values into memory of [padded_dim, SPAN], so that sixteen dims of all tokens are
// contiguous.
template <class Source>
inline void widen_values(SpanPanels<Bf16Operand>& out, const SpanPanels<Source>& in,
                         int64_t padded_dim, Bf16Operand* memory) {
    constexpr int64_t items = PANEL * PANEL;
    out.value_stride = SPAN * PANEL;
    for (int64_t p = out.panels.begin; p < out.panels.end; ++p) {
        out.values[p] = memory + p * items;
        for (int64_t d = 0; d < padded_dim / PANEL; ++d) {
            widen_panel(memory + p * items + d * out.value_stride,
                        in.values[p] + d * in.value_stride, items);
        }
    }
}

}  // namespace TACO_ISA
