// Log-sum-exp of a row, in parts that either a matrix product or a pass over stored logits
// computes.
//
// A part is 64 adjacent tokens, independent of blocks and threads. Parts are added in vocabulary
// order. So the bits of the sum depend on the row's logits alone, and are the same whether or not
// the logits were stored.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "isa/vector_math.h"
#include "sampling/sampling_args.h"

namespace TACO_ISA {

// Tokens past the end of the row are -inf.
inline PartialSum partial_sum(const F32 (&logits)[PARTIAL_SUM_PANELS]) {
    F32 greatest = set1(std::numeric_limits<float>::lowest());
    for (const F32& each : logits) greatest = max(each, greatest);
    const float maximum = reduce_max(greatest);
    F32 sum = zero();
    for (const F32& each : logits) {
        sum = add(sum, exp2(mul(sub(each, set1(maximum)), set1(LOG2_E))));
    }
    return {maximum, reduce_add(sum)};
}

// The logarithm of the sum. maximum: the row's greatest logit. NaN if it is infinite.
inline double log_sum(const PartialSum* parts, int64_t count, float maximum) {
    double sum = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        const int64_t lanes = std::min(int64_t(LANES), count - first);
        float maxima[LANES], sums[LANES] = {};
        std::fill(maxima, maxima + LANES, std::numeric_limits<float>::lowest());
        for (int64_t i = 0; i < lanes; ++i) {
            maxima[i] = parts[first + i].maximum;
            sums[i] = parts[first + i].sum;
        }
        store(sums, mul(load(sums), exp_bounded(sub(load(maxima), set1(maximum)))));
        for (const float each : sums) sum += each;
    }
    return std::log(sum);
}

}  // namespace TACO_ISA
