// Partial softmax sums of each row over some keys, and how two of them are merged.
//
// Online softmax: Milakov and Gimelshein (2018), "Online normalizer calculation for softmax".
#pragma once

#include <algorithm>

#include "isa/vector_math.h"

namespace TACO_ISA {

// Lower than every unmasked score. Finite, so that exp(-inf - NO_SCORE) is 0 and not NaN.
constexpr float NO_SCORE = -1e38f;

// For each row: the best score m, the sum of exp(score - m), and the sum of the values with these
// weights.
struct SpanSums {
    float* values;  // [rows, padded_dim]
    float* best;    // [rows]
    float* weight;  // [rows]
    int64_t rows, padded_dim;

    SpanSums(float* memory, int64_t num_rows, int64_t dim)
        : values(memory),
          best(memory + num_rows * dim),
          weight(best + num_rows),
          rows(num_rows),
          padded_dim(dim) {}

    // Floats of a record, in whole cache lines.
    static int64_t num_floats(int64_t rows, int64_t padded_dim) {
        return round_up(rows * (padded_dim + 2), 16);
    }

    void clear() {
        std::fill_n(values, rows * padded_dim, 0.0f);
        std::fill_n(best, rows, NO_SCORE);
        std::fill_n(weight, rows, 0.0f);
    }
};

// Merges `span` into `total`. A span of which a row saw nothing changes no bit of the row.
inline void merge(SpanSums& total, const SpanSums& span) {
    for (int64_t r = 0; r < total.rows; ++r) {
        const float best = std::max(total.best[r], span.best[r]);
        const F32 keep = exp(set1(total.best[r] - best)), join = exp(set1(span.best[r] - best));
        float* values = total.values + r * total.padded_dim;
        const float* more = span.values + r * total.padded_dim;
        for (int64_t d = 0; d < total.padded_dim; d += LANES) {
            store(values + d, fma(load(more + d), join, mul(load(values + d), keep)));
        }
        total.best[r] = best;
        const F32 weight = fma(set1(span.weight[r]), join, mul(set1(total.weight[r]), keep));
        total.weight[r] = reduce_max(weight);
    }
}

}  // namespace TACO_ISA
