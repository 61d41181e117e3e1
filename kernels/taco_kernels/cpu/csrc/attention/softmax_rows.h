// Softmax over one span: turns the rows' query-key products into weights of the values.
#pragma once

#include <limits>

#include "attention/attention_plan.h"
#include "attention/online_softmax.h"
#include "isa/vector_math.h"
#include "runtime/range.h"

namespace TACO_ISA {

constexpr int64_t SPAN_PANELS = SPAN / PANEL;
// Two panels of tokens: one tile of AMX values, one vector of bf16 weights.
constexpr int64_t STRIP = 2 * PANEL, SPAN_STRIPS = SPAN / STRIP;
constexpr uint32_t ALL_PANELS = (uint32_t(1) << SPAN_PANELS) - 1;
constexpr uint32_t ALL_STRIPS = (uint32_t(1) << SPAN_STRIPS) - 1;

// Bits 0 to count - 1.
inline uint32_t low_bits(int64_t count) { return (uint32_t(1) << count) - 1; }

// Bits: the strips that hold any of the panels.
inline uint32_t strips_of(Range panels) {
    return panels.size() > 0 ? low_bits(ceil_div(panels.end, 2)) & ~low_bits(panels.begin / 2) : 0;
}

// How one row sees a span.
struct RowView {
    Range seen;                         // tokens of the span
    uint32_t panel_bits = ALL_PANELS;   // panels of which it sees the tokens in `seen`
    uint32_t whole_strips, any_strips;  // bits: strips of which it sees all tokens; any token
    float factor;                       // log2 of a weight per unit of score

    void find_strips() {
        any_strips = whole_strips = 0;
        if (seen.begin >= seen.end) return;
        any_strips = low_bits(ceil_div(seen.end, STRIP)) & ~low_bits(seen.begin / STRIP);
        whole_strips = low_bits(seen.end / STRIP) & ~low_bits(ceil_div(seen.begin, STRIP));
        if (panel_bits == ALL_PANELS) return;
        uint32_t any = 0, whole = 0;
        for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
            const uint32_t panels = panel_bits >> 2 * s & 3;
            any |= uint32_t(panels != 0) << s;
            whole |= uint32_t(panels == 3) << s;
        }
        any_strips &= any;
        whole_strips &= whole;
    }
    // Bits of the tokens that it sees of a panel.
    uint32_t lanes(int64_t panel) const {
        const auto below = [&](int64_t token) {
            return low_bits(std::clamp<int64_t>(token - panel * PANEL, 0, LANES));
        };
        return panel_bits >> panel & 1 ? below(seen.end) & ~below(seen.begin) : 0;
    }
};

// Where vectors of sixteen tokens lie in the scores, and in the weights: row by row.
struct RowOrder {
    // Not a power of two, so that rows do not share cache sets.
    static constexpr int64_t STRIDE = SPAN + PANEL;
    static constexpr int64_t score(int64_t row, int64_t panel) { return row * STRIDE + panel * 16; }
    static constexpr int64_t weight(int64_t row, int64_t panel) { return score(row, panel); }
};

// Likewise of 32 rows in AMX tiles, strip by strip: scores as quads of sums (two tiles of rows by
// two panels), weights as two tiles of rows.
struct TileOrder {
    static constexpr int64_t score(int64_t row, int64_t panel) {
        return panel / 2 * 1024 + (row & 16) * 32 + panel % 2 * 256 + (row & 15) * 16;
    }
    static constexpr int64_t weight(int64_t row, int64_t panel) {
        return panel / 2 * 1024 + (row & 16) * 32 + (row & 15) * 32 + panel % 2 * 16;
    }
};

// The scales of tokens' keys and values, [SPAN]; null where scores or weights take none.
struct SpanScales {
    const float* keys = nullptr;
    const float* values = nullptr;
};

inline F32 weight_of(F32 power, float) { return exp2(power); }
inline F32 weight_of(F32 power, bf16) { return exp2_for_bf16(power); }

// The scores and weights of some rows over one span. `Operand` is the type of the weights, which
// may lie in the scores' own memory.
template <class Operand, class Order, bool HasKeyScales, bool HasValueScales>
class SoftmaxRows {
public:
    SoftmaxRows(const float* scores, Operand* weights, const SpanScales& scales)
        : scores_(scores), weights_(weights), scales_(scales) {}

    // The row's best scores, by lane; less than any score if it sees no token.
    F32 find_best(int64_t row, const RowView& view) const {
        if (view.any_strips == 0) return set1(-std::numeric_limits<float>::infinity());
        F32 even = set1(NO_SCORE), odd = even;
        if (view.whole_strips == ALL_STRIPS) {
#pragma GCC unroll 8
            for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
                even = max(score(row, 2 * s), even);
                odd = max(score(row, 2 * s + 1), odd);
            }
        } else {
            for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
                if (!(view.any_strips >> s & 1)) continue;
                F32 left = score(row, 2 * s), right = score(row, 2 * s + 1);
                if (!(view.whole_strips >> s & 1)) {
                    left = select_bits(view.lanes(2 * s), left, even);
                    right = select_bits(view.lanes(2 * s + 1), right, odd);
                }
                even = max(left, even);
                odd = max(right, odd);
            }
        }
        return max(even, odd);
    }

    // Writes the row's weights of `strips` (bits), 0 for tokens that it does not see. Returns their
    // sums, by lane.
    F32 weigh(int64_t row, const RowView& view, uint32_t strips, float best) const {
        const F32 factor = set1(view.factor), shift = set1(-best);
        F32 sum = zero();
        if (view.whole_strips == ALL_STRIPS) {
#pragma GCC unroll 8
            for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
                sum = weigh_strip<false>(sum, row, s, view, factor, shift);
            }
        } else {
            for (int64_t s = 0; s < SPAN_STRIPS; ++s) {
                if (!(strips >> s & 1)) continue;
                if (view.whole_strips >> s & 1) {
                    sum = weigh_strip<false>(sum, row, s, view, factor, shift);
                } else if (view.any_strips >> s & 1) {
                    sum = weigh_strip<true>(sum, row, s, view, factor, shift);
                } else {
                    store_strip(zero(), row, s, zero(), zero());
                }
            }
        }
        return sum;
    }

private:
    F32 score(int64_t row, int64_t panel) const {
        const F32 scores = load(scores_ + Order::score(row, panel));
        if constexpr (HasKeyScales) return mul(scores, load(scales_.keys + panel * PANEL));
        return scores;
    }

    template <bool IsMasked>
    F32 weigh_strip(F32 sum, int64_t row, int64_t s, const RowView& view, F32 factor,
                    F32 shift) const {
        F32 left = weight_of(fma(score(row, 2 * s), factor, shift), Operand());
        F32 right = weight_of(fma(score(row, 2 * s + 1), factor, shift), Operand());
        if constexpr (IsMasked) {
            left = select_bits(view.lanes(2 * s), left, zero());
            right = select_bits(view.lanes(2 * s + 1), right, zero());
        }
        if constexpr (HasValueScales) {
            const float* scales = scales_.values + s * STRIP;
            sum = add(sum, add(left, right));
            left = mul(left, load(scales));
            right = mul(right, load(scales + PANEL));
            if constexpr (IsMasked) {  // the scale of a token that is not seen may be NaN
                left = select_bits(view.lanes(2 * s), left, zero());
                right = select_bits(view.lanes(2 * s + 1), right, zero());
            }
        }
        const F32 with_strip = store_strip(sum, row, s, left, right);
        return HasValueScales ? sum : with_strip;
    }

    // Returns `sum` plus the weights as they were rounded.
    F32 store_strip(F32 sum, int64_t row, int64_t s, F32 left, F32 right) const {
        Operand* out = weights_ + Order::weight(row, 2 * s);
        if constexpr (std::is_same_v<Operand, float>) {
            store(out, left);
            store(out + PANEL, right);
            return add(sum, add(left, right));
        } else {
            return store_operands(out, left, right, sum);
        }
    }

    const float* const scores_;
    Operand* const weights_;
    const SpanScales scales_;
};

// Weighs `count` rows. views(row) returns a RowView; `strips`: those that any of the rows sees.
// `best` and `weight` have memory for whole vectors of rows. Sixteen rows at a time: the lanes of
// all are added up together.
template <class Softmax, class Views>
inline void weigh_rows(const Softmax& softmax, int64_t count, uint32_t strips, Views views,
                       float* best, float* weight) {
    RowView view[LANES];
    F32 lanes[LANES];
    std::fill_n(lanes, LANES, zero());
    float factors[LANES] = {};
    for (int64_t first = 0; first < count; first += LANES) {
        const int64_t rows = std::min<int64_t>(LANES, count - first);
        for (int64_t r = 0; r < rows; ++r) {
            view[r] = views(first + r);
            factors[r] = view[r].factor;
            lanes[r] = softmax.find_best(first + r, view[r]);
        }
        store(best + first, max(set1(NO_SCORE), mul(reduce_max(lanes), load(factors))));
        for (int64_t r = 0; r < rows; ++r) {
            lanes[r] = softmax.weigh(first + r, view[r], strips, best[first + r]);
        }
        store(weight + first, reduce_add(lanes));
    }
}

// Calls weigh_rows with the scales that the cache has.
template <class Order, class Operand, class Views>
inline void weigh_rows(const float* scores, Operand* weights, const SpanScales& scales,
                       int64_t count, uint32_t strips, Views views, float* best, float* weight) {
    const auto weigh = [&](const auto& softmax) {
        weigh_rows(softmax, count, strips, views, best, weight);
    };
    if (scales.keys) {
        weigh(SoftmaxRows<Operand, Order, true, true>(scores, weights, scales));
    } else if (scales.values) {
        weigh(SoftmaxRows<Operand, Order, false, true>(scores, weights, scales));
    } else {
        weigh(SoftmaxRows<Operand, Order, false, false>(scores, weights, scales));
    }
}

// What turns a product with a key into a score, other than a factor.
struct ScoreTerms {
    float scale;
    float cap;          // 0: none
    float slope;        // ALiBi
    int64_t own_token;  // the row's, counted from the span's first
};

// Replaces the products of the strips that a row sees by finished scores: scaled, capped, with the
// ALiBi bias.
template <class Order>
inline void finish_scores(float* scores, int64_t row, const RowView& view, const ScoreTerms& terms,
                          const float* key_scales) {
    for (int64_t p = 0; p < SPAN_PANELS; ++p) {
        if (!(view.any_strips >> p / 2 & 1)) continue;
        float* at = scores + Order::score(row, p);
        F32 score = mul(load(at), set1(terms.scale));
        if (key_scales) score = mul(score, load(key_scales + p * PANEL));
        if (terms.cap > 0) {
            const F32 cap = set1(terms.cap);
            score = mul(cap, tanh(div(score, cap)));
        }
        const F32 distances = add(lane_numbers(), set1(float(p * PANEL - terms.own_token)));
        store(at, fma(set1(terms.slope), distances, score));
    }
}

}  // namespace TACO_ISA
