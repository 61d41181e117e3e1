// Softmax over one span: turns a row's query-key products into weights of the values.
#pragma once

#include "attention/attention_plan.h"
#include "attention/online_softmax.h"
#include "isa/vector_math.h"
#include "runtime/range.h"

namespace TACO_ISA {

// Distance between rows of scores. Not a power of two, so that rows do not share cache sets.
constexpr int64_t SCORE_STRIDE = SPAN + PANEL;
constexpr int64_t SPAN_PANELS = SPAN / PANEL;

// The scales of int8 keys and values, for sixteen tokens each; null for other types.
struct SpanScales {
    const float* keys[SPAN_PANELS];
    const float* values[SPAN_PANELS];
};

struct SoftmaxRow {
    float* scores;        // [SPAN], on entry the products of the panels that hold `seen`
    Range seen;           // tokens of the span
    Range panels;         // panels to write weights for: 0 for unseen tokens
    uint32_t panel_bits;  // panels of the span that it sees any token of, if in `seen`
    int64_t last_token;   // the row's own token, counted from the span's first
    float scale;
    float slope;  // ALiBi
    float* best;  // the row's two sums in SpanSums
    float* weight;
};

constexpr uint32_t ALL_PANELS = (uint32_t(1) << SPAN_PANELS) - 1;

// Scores of sixteen tokens from their products with the query: scaled, capped,
// with the ALiBi bias.
inline F32 finish_scores(F32 products, const Attention& attention, const SoftmaxRow& row,
                         const float* key_scales, F32 distances) {
    F32 scores = mul(products, set1(row.scale));
    if (key_scales) scores = mul(scores, load(key_scales));
    if (attention.cap > 0) {
        const F32 cap = set1(attention.cap);
        scores = mul(cap, tanh(div(scores, cap)));
    }
    return attention.alibi ? fma(set1(row.slope), distances, scores) : scores;
}

inline void finish_row(const Attention& attention, const SpanScales& scales,
                       const SoftmaxRow& row) {
    for (int64_t p = row.seen.begin / PANEL; p < ceil_div(row.seen.end, PANEL); ++p) {
        float* scores = row.scores + p * PANEL;
        const F32 distances = add(lane_numbers(), set1(float(p * PANEL - row.last_token)));
        store(scores, finish_scores(load(scores), attention, row, scales.keys[p], distances));
    }
}

// Sets the scores of unseen tokens to -inf, in the panel that holds `token`.
inline void mask_panel(const SoftmaxRow& row, int64_t token) {
    const int64_t first = token / PANEL * PANEL;
    const F32 tokens = add(lane_numbers(), set1(float(first)));
    const F32 unseen = set1(-std::numeric_limits<float>::infinity());
    F32 scores = load(row.scores + first);
    scores = select_less(tokens, set1(float(row.seen.begin)), unseen, scores);
    scores = select_less(tokens, set1(float(row.seen.end)), scores, unseen);
    store(row.scores + first, scores);
}

// Sets the scores of unseen panels to -inf.
inline void hide_panels(const SoftmaxRow& row, int64_t begin, int64_t end) {
    const F32 unseen = set1(-std::numeric_limits<float>::infinity());
    for (int64_t p = begin; p < end; ++p) {
        if (!(row.panel_bits >> p & 1)) store(row.scores + p * PANEL, unseen);
    }
}

inline void store_weights(float* p, F32 v) { store(p, v); }
inline void store_weights(bf16* p, F32 v) { store_bf16(p, v); }

// Writes the weights exp(score - best), times the values' scales, to `weights`, and their sum and
// the best score to the row's sums. `weights` may be the scores' own memory.
template <class Operand>
inline void softmax_row(const Attention& attention, const SpanScales& scales, const SoftmaxRow& row,
                        Operand* weights) {
    const int64_t begin = row.seen.begin / PANEL, end = ceil_div(row.seen.end, PANEL);
    for (int64_t p = row.panels.begin; p < std::min(begin, row.panels.end); ++p) {
        store_weights(weights + p * PANEL, zero());
    }
    for (int64_t p = std::max(end, row.panels.begin); p < row.panels.end; ++p) {
        store_weights(weights + p * PANEL, zero());
    }

    // A mere factor is applied inside the exponent.
    const bool scaled = attention.cache.type == DType::i8;
    const bool is_product = !scaled && attention.cap == 0 && !attention.alibi;
    if (!is_product) finish_row(attention, scales, row);
    if (begin < end) {
        mask_panel(row, row.seen.begin);
        mask_panel(row, row.seen.end - 1);
    }
    if (row.panel_bits != ALL_PANELS) hide_panels(row, begin, end);
    const float factor = is_product ? row.scale : 1;
    F32 best = set1(NO_SCORE);
    for (int64_t p = begin; p < end; ++p) best = max(load(row.scores + p * PANEL), best);
    *row.best = std::max(NO_SCORE, reduce_max(best) * factor);

    F32 weight = zero();
    for (int64_t p = begin; p < end; ++p) {
        const F32 scores = load(row.scores + p * PANEL);
        const F32 w = exp_bounded(fma(scores, set1(factor), set1(-*row.best)));
        weight = add(weight, w);
        store_weights(weights + p * PANEL, scaled ? mul(w, load(scales.values[p])) : w);
    }
    *row.weight = reduce_add(weight);
}

}  // namespace TACO_ISA
