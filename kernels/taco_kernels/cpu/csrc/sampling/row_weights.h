// Weights of a row's tokens: exp((logit - max) / temperature), so that the greatest is 1.
#pragma once

#include "isa/vector_math.h"
#include "sampling/row_maxima.h"
#include "sampling/sampling_scratch.h"

namespace TACO_ISA {

// `exp` is not monotonic to the last bit: weights of a group may exceed that of its greatest logit
// by this factor.
constexpr float SLACK = 1.0f + 1e-6f;

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
// A float just below x: what exceeds it is at least x, which is not negative. The vectors' only
// comparison is `less`.
inline F32 just_below(float x) { return set1(x == 0 ? -1 : std::nextafter(x, 0.0f)); }

class RowWeights {
public:
    RowWeights(const LogitRows& logits, int64_t row, float max, float temperature)
        : logits_(logits),
          numbers_(logits.row(row)),
          max_(set1(max)),
          sharpness_(set1(1.0f / temperature)) {}

    // Calls body(first token, F32) for the weights of a group; lanes past the row hold 0.
    template <class Body>
    void each(int64_t group, Body body) const {
        const int64_t end = group_end(logits_, group);
        int64_t i = group_begin(group);
        for (; i + LANES <= end; i += LANES) body(i, weigh(load(numbers_ + i)));
        if (i < end) body(i, weigh(load_first(numbers_ + i, end - i, -INFINITE)));
    }

    // Writes the weight of each group's greatest logit.
    void tops(const float* maxima, float* out) const {
        const int64_t count = logits_.num_groups();
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES) store(out + i, weigh(load(maxima + i)));
        if (i < count) store_first(out + i, weigh(load_first(maxima + i, count - i)), count - i);
    }

    // Sum of the weights of a group that are at least `floor`.
    float sum(int64_t group, float floor) const {
        const F32 below = just_below(floor);
        F32 sum = zero();
        each(group, [&](int64_t, F32 w) { sum = add(sum, select_less(below, w, w, zero())); });
        return reduce_add(sum);
    }

private:
    F32 weigh(F32 x) const { return exp_bounded(mul(sub(x, max_), sharpness_)); }

    const LogitRows& logits_;
    const float* numbers_;
    F32 max_, sharpness_;
};

}  // namespace TACO_ISA
