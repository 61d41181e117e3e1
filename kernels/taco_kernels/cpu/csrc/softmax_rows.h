// From products of queries and keys to weights of the values, one row over one span.
#pragma once

#include "attention_plan.h"
#include "math.h"
#include "span_sums.h"

namespace TACO_ISA {

// From a row of scores to the next: not a power of two, so that rows do not share cache sets.
constexpr int64_t SCORE_STRIDE = SPAN + PANEL;
constexpr int64_t SPAN_PANELS = SPAN / PANEL;

// Panels or tokens [begin, end).
struct Range {
    int64_t begin, end;
};

// The scales of int8 keys and values, sixteen tokens each; null for other types.
struct SpanScales {
    const float* keys[SPAN_PANELS];
    const float* values[SPAN_PANELS];
};

struct SoftmaxRow {
    float* scores;       // [SPAN], products on entry, of the panels that hold `seen`
    Range seen;          // tokens of the span
    Range panels;        // where weights are wanted: those that are not seen get 0
    int64_t last_token;  // the row's own token, counted from the span's first
    float alibi_slope;
    float* best;    // the two sums of the row (SpanSums)
    float* weight;
};

// A score as the model defines it: the product times scale, capped, with its distance's penalty.
inline F32 finish_score(F32 score, const Attention& attention, const float* key_scales,
                        F32 distance, float alibi_slope) {
    score = mul(score, set1(attention.scale));
    if (key_scales) score = mul(score, load(key_scales));
    if (attention.soft_cap > 0) {
        const F32 cap = set1(attention.soft_cap);
        score = mul(cap, tanh(div(score, cap)));
    }
    return attention.alibi_slopes ? fma(set1(alibi_slope), distance, score) : score;
}

// Writes the weights exp(score - best) to `weights`, times the values' scales, and their sum and
// the best score to the row's sums. `weights` may be the scores themselves.
template <class Operand>
inline void softmax_row(const Attention& attention, const SpanScales& scales,
                        const SoftmaxRow& row, Operand* weights) {
    const auto write = [&](int64_t panel, F32 v) {
        if constexpr (std::is_same_v<Operand, float>) {
            store(weights + panel * PANEL, v);
        } else {
            store_bf16_operand(weights + panel * PANEL, v);
        }
    };
    const int64_t begin = row.seen.begin / PANEL, end = ceil_div(row.seen.end, PANEL);
    const F32 masked = set1(-std::numeric_limits<float>::infinity());
    F32 best = set1(NO_SCORE);
    for (int64_t p = begin; p < end; ++p) {
        const F32 token = add(lane_numbers(), set1(float(p * PANEL)));
        const F32 distance = sub(token, set1(float(row.last_token)));
        F32 score = finish_score(load(row.scores + p * PANEL), attention, scales.keys[p], distance,
                                 row.alibi_slope);
        if (p * PANEL < row.seen.begin || (p + 1) * PANEL > row.seen.end) {
            score = select_less(token, set1(float(row.seen.begin)), masked, score);
            score = select_less(token, set1(float(row.seen.end)), score, masked);
        }
        store(row.scores + p * PANEL, score);
        best = max(score, best);
    }
    *row.best = reduce_max(best);

    F32 weight = zero();
    for (int64_t p = row.panels.begin; p < std::min(begin, row.panels.end); ++p) write(p, zero());
    for (int64_t p = begin; p < end; ++p) {
        const F32 w = exp(sub(load(row.scores + p * PANEL), set1(*row.best)));
        weight = add(weight, w);
        write(p, scales.values[p] ? mul(w, load(scales.values[p])) : w);
    }
    for (int64_t p = std::max(end, row.panels.begin); p < row.panels.end; ++p) write(p, zero());
    *row.weight = reduce_add(weight);
}

}  // namespace TACO_ISA
