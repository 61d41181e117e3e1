// Partial softmax sums of each row over some keys, and how two of them are merged.
//
// Online softmax: Milakov and Gimelshein (2018), "Online normalizer calculation for softmax".
// Powers are of 2: scores are multiplied with log2(e) beforehand.
#pragma once

#include <algorithm>

#include "isa/vector_math.h"

namespace TACO_ISA {

// Lower than every unmasked score. Finite, so that differences are not NaN.
constexpr float NO_SCORE = -1e38f;

// For each row: the best score m, the sum of 2^(score - m), and the sum of the values with these
// weights.
struct SpanSums {
    float* values;  // [rows, padded_dim]
    float* best;    // [rows], and memory for whole vectors
    float* weight;  // the same
    int64_t rows, padded_dim;

    SpanSums(float* memory, int64_t num_rows, int64_t dim)
        : values(memory),
          best(memory + num_rows * dim),
          weight(best + round_up(num_rows, LANES)),
          rows(num_rows),
          padded_dim(dim) {}

    static int64_t num_floats(int64_t rows, int64_t padded_dim) {
        return rows * padded_dim + 2 * round_up(rows, LANES);
    }

    const float* value(int64_t row, int64_t dim) const { return values + row * padded_dim + dim; }

    // Copies all rows from those of `other` from row `first` on.
    void copy_rows(const SpanSums& other, int64_t first) {
        std::copy_n(other.value(first, 0), rows * padded_dim, values);
        std::copy_n(other.best + first, rows, best);
        std::copy_n(other.weight + first, rows, weight);
    }

    // Sets all rows to the sums over no keys.
    void clear() {
        std::fill_n(values, rows * padded_dim, 0.0f);
        std::fill_n(best, rows, NO_SCORE);
        std::fill_n(weight, rows, 0.0f);
    }
};

// Merges `more` into sixteen rows of `total`, or into fewer at its end, from row `first` on (a
// multiple of 16). If `is_first`, the rows of `total` are not read: they saw nothing yet. A span of
// which a row saw nothing changes no bit of the row. more.value(row, dim) is the address of sixteen
// sums; `more_best` and `more_weight` begin with row `first`.
template <class Sums>
inline void merge_rows(const SpanSums& total, int64_t first, bool is_first, const Sums& more,
                       const float* more_best, const float* more_weight) {
    const F32 old = is_first ? set1(NO_SCORE) : load(total.best + first), here = load(more_best);
    const F32 best = max(old, here);
    const F32 keep = exp2(sub(old, best)), join = exp2(sub(here, best));
    const F32 kept = is_first ? zero() : mul(load(total.weight + first), keep);
    store(total.best + first, best);
    store(total.weight + first, fma(load(more_weight), join, kept));

    float keeps[LANES], joins[LANES];
    store(keeps, keep);
    store(joins, join);
    const int64_t count = std::min<int64_t>(LANES, total.rows - first);
    for (int64_t r = 0; r < count; ++r) {
        float* values = total.values + (first + r) * total.padded_dim;
        const F32 factor = set1(joins[r]), old_factor = set1(keeps[r]);
        for (int64_t d = 0; d < total.padded_dim; d += LANES) {
            const F32 before = is_first ? zero() : mul(load(values + d), old_factor);
            store(values + d, fma(load(more.value(first + r, d)), factor, before));
        }
    }
}

// Merges all rows of `span` into `total`.
inline void merge(const SpanSums& total, const SpanSums& span, bool is_first) {
    for (int64_t first = 0; first < total.rows; first += LANES) {
        merge_rows(total, first, is_first, span, span.best + first, span.weight + first);
    }
}

}  // namespace TACO_ISA
