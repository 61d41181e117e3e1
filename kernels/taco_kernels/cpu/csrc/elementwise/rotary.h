// Rotary position embedding (RoFormer, Su et al. 2021), halves rotated as in GPT-NeoX.
#pragma once

#include "isa/partial_vectors.h"

namespace TACO_ISA {

// Rotates each pair (x[i], x[i + head_dim / 2]) of each head of one token by its position's angle,
// in place. cosines, sines: [head_dim / 2].
inline void rotate_heads(float* heads, int64_t num_heads, int64_t head_dim, const float* cosines,
                         const float* sines) {
    const auto turn = [](F32& first, F32& second, F32 cosine, F32 sine) {
        const F32 x = first, y = second;
        first = sub(mul(x, cosine), mul(y, sine));
        second = add(mul(y, cosine), mul(x, sine));
    };
    const int64_t half = head_dim / 2;
    for (int64_t head = 0; head < num_heads; ++head) {
        float* lower = heads + head * head_dim;
        float* upper = lower + half;
        for (int64_t i = 0; i < half; i += LANES) {
            const int64_t count = std::min<int64_t>(half - i, LANES);
            F32 first = load_lanes(lower + i, count), second = load_lanes(upper + i, count);
            turn(first, second, load_lanes(cosines + i, count), load_lanes(sines + i, count));
            store_lanes(lower + i, first, count);
            store_lanes(upper + i, second, count);
        }
    }
}

}  // namespace TACO_ISA
