// The rows of a query block: which tokens each of them sees, and the factors of its scores.
#pragma once

#include <cmath>

#include "attention/softmax_rows.h"
#include "attention/span_panels.h"

namespace TACO_ISA {

// The tokens of a span that a query at `position` sees, if it sees their blocks.
inline Range tokens_seen_at(const Attention& attention, int64_t position, int64_t span) {
    const auto clamp = [&](int64_t x) { return std::clamp<int64_t>(x - span * SPAN, 0, SPAN); };
    const int64_t window = attention.window;
    return {clamp(window ? position - window + 1 : 0), clamp(position + 1)};
}

// The panels of a span that any query from position `first` to `last` sees: both ends of what a
// query sees grow with its position.
inline Range panels_seen_between(const Attention& attention, int64_t first, int64_t last,
                                 int64_t span) {
    const int64_t begin = tokens_seen_at(attention, first, span).begin / PANEL;
    const int64_t end = ceil_div(tokens_seen_at(attention, last, span).end, PANEL);
    return {begin, std::max(begin, end)};
}

// The panels of an item's first span.
template <class Source>
inline SpanPanels<Source> locate_first(const Attention& attention, const AttentionItem& item) {
    const int64_t first = item.block.first_position, last = item.block.end_position - 1;
    const int64_t span = item.spans.begin;
    return SpanLocator<Source>(attention, item.block)
        .locate(span, panels_seen_between(attention, first, last, span));
}

class QueryRows {
public:
    // `positions` and `scales`: memory for as many numbers as the block has rows.
    QueryRows(const Attention& attention, const QueryBlock& block, int32_t* positions,
              float* scales)
        : attention_(attention),
          block_(block),
          group_(attention.num_heads / attention.cache.entries[attention.entry].num_heads),
          positions_(positions),
          scales_(scales) {
        const float key_factor = attention.cache.entry(attention.entry).key_factor();
        for (int64_t token = 0, row = 0; token < block.num_tokens; ++token) {
            const int64_t position = block.is_prefix
                                         ? attention.batch.seq_lens[block.sequence + token] - 1
                                         : block.first_position + token;
            const float scale = attention.scale * key_factor * length_factor(position);
            for (int64_t i = 0; i < group_; ++i, ++row) {
                positions_[row] = int32_t(position);
                scales_[row] = scale;
            }
        }
    }

    int64_t count() const { return block_.num_tokens * group_; }

    // The key_dim numbers of a row's query.
    const float* query(int64_t row, int64_t key_dim) const {
        return attention_.queries + (block_.first_token + row / group_) * attention_.query_stride +
               head(row) * key_dim;
    }

    bool is_sparse() const { return attention_.block_sparse.block_size > 0; }
    // Whether scores are more than products times a factor, so that `finish_scores` is needed.
    bool needs_finish() const { return attention_.cap > 0 || attention_.alibi; }

    // The tokens of a span that a row sees, if it sees their blocks.
    Range tokens_seen(int64_t row, int64_t span) const {
        return tokens_seen_at(attention_, positions_[row], span);
    }
    // The panels of a span that any of `count` rows sees.
    Range panels_seen(int64_t first, int64_t count, int64_t span) const {
        return panels_seen_between(attention_, positions_[first], positions_[first + count - 1],
                                   span);
    }

    // Bits of the panels that a row sees by the block-sparse pattern.
    uint32_t panel_bits(int64_t row, int64_t span) const {
        const BlockSparse& sparse = attention_.block_sparse;
        if (sparse.block_size == 0) return ALL_PANELS;
        const int64_t own = positions_[row] / sparse.block_size;
        const int64_t shift = sparse.head_offset + head(row) * sparse.head_step + 1;
        uint32_t bits = 0;
        for (int64_t p = 0; p < SPAN_PANELS; ++p) {
            const int64_t block = (span * SPAN + p * PANEL) / sparse.block_size;
            const bool is_seen =
                own - block < sparse.num_local_blocks || (block + shift) % sparse.stride == 0;
            bits |= uint32_t(is_seen) << p;
        }
        return bits;
    }

    RowView view(int64_t row, int64_t span, uint32_t panel_bits) const {
        RowView view;
        view.seen = tokens_seen(row, span);
        view.panel_bits = panel_bits;
        view.factor = needs_finish() ? LOG2_E : scales_[row] * LOG2_E;
        view.find_strips();
        return view;
    }

    ScoreTerms terms(int64_t row, int64_t span) const {
        return {scales_[row], attention_.cap, attention_.alibi ? attention_.alibi[head(row)] : 0,
                positions_[row] - span * SPAN};
    }

private:
    int64_t head(int64_t row) const { return block_.kv_head * group_ + row % group_; }

    float length_factor(int64_t position) const {
        if (attention_.log_n == 0 || position < attention_.log_n) return 1;
        return float(std::log(double(position + 1)) / std::log(double(attention_.log_n)));
    }

    const Attention& attention_;
    const QueryBlock block_;
    const int64_t group_;
    int32_t* const positions_;
    float* const scales_;
};

}  // namespace TACO_ISA
