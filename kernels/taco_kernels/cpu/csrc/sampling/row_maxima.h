// The greatest logit of each group of a row, and the most likely token.
#pragma once

#include <cmath>
#include <limits>

#include "isa/partial_vectors.h"
#include "sampling/sampling_args.h"

namespace TACO_ISA {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// Calls body(group) for the groups of one segment.
template <class Body>
inline void for_groups(const LogitRows& logits, int64_t segment, Body body) {
    const int64_t last = std::min((segment + 1) * SEGMENT_GROUPS, logits.num_groups());
    for (int64_t group = segment * SEGMENT_GROUPS; group < last; ++group) body(group);
}

inline int64_t group_begin(int64_t group) { return group * GROUP_TOKENS; }
inline int64_t group_end(const LogitRows& logits, int64_t group) {
    return std::min((group + 1) * GROUP_TOKENS, logits.vocab_size);
}

// The greatest of some logits; NaN if one is NaN.
inline float maximum(const float* logits, int64_t begin, int64_t end) {
    F32 greatest = set1(-INFINITE), products = zero();
    const auto take = [&](F32 x) {
        greatest = max(x, greatest);  // in this order max ignores NaN
        products = fma(x, zero(), products);
    };
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) take(load(logits + i));
    if (i < end) take(load_first(logits + i, end - i, logits[i]));
    // A product with zero is NaN for infinities too; these are rare.
    if (std::isnan(reduce_add(products))) {
        for (i = begin; i < end; ++i) {
            if (std::isnan(logits[i])) return logits[i];
        }
    }
    return reduce_max(greatest);
}

inline void find_maxima(const LogitRows& logits, int64_t row, int64_t segment, float* maxima) {
    const float* numbers = logits.row(row);
    for_groups(logits, segment, [&](int64_t group) {
        maxima[group] = maximum(numbers, group_begin(group), group_end(logits, group));
    });
}

// The greatest of all groups; NaN if one is NaN.
inline float row_maximum(const LogitRows& logits, const float* maxima) {
    return maximum(maxima, 0, logits.num_groups());
}

// The lowest id whose logit is `greatest`, the row's finite maximum.
inline int64_t most_likely(const LogitRows& logits, int64_t row, const float* maxima,
                           float greatest) {
    const auto is_it = [greatest](float x) { return x == greatest; };
    const int64_t group = std::find_if(maxima, maxima + logits.num_groups(), is_it) - maxima;
    const float* numbers = logits.row(row);
    return std::find_if(numbers + group_begin(group), numbers + group_end(logits, group), is_it) -
           numbers;
}

}  // namespace TACO_ISA
