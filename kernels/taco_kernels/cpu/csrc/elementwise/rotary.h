// Rotary position embedding (RoFormer, Su et al. 2021) of the heads of one row.
#pragma once

#include "elementwise/elementwise_args.h"
#include "isa/partial_vectors.h"

namespace TACO_ISA {

// Pairs (x[i], x[i + distance]), as in GPT-NeoX.
struct HalfPairs {
    int64_t distance;

    void load(const float* x, int64_t i, int64_t count, F32& first, F32& second) const {
        first = load_lanes(x + i, count);
        second = load_lanes(x + i + distance, count);
    }
    void store(float* x, int64_t i, int64_t count, F32 first, F32 second) const {
        store_lanes(x + i, first, count);
        store_lanes(x + i + distance, second, count);
    }
};

// Pairs (x[2i], x[2i + 1]), as in GPT-J and GLM.
struct InterleavedPairs {
    void load(const float* x, int64_t i, int64_t count, F32& first, F32& second) const {
        float split[2][LANES] = {};
        for (int64_t lane = 0; lane < count; ++lane) {
            split[0][lane] = x[2 * (i + lane)];
            split[1][lane] = x[2 * (i + lane) + 1];
        }
        first = TACO_ISA::load(split[0]);
        second = TACO_ISA::load(split[1]);
    }
    void store(float* x, int64_t i, int64_t count, F32 first, F32 second) const {
        float split[2][LANES];
        TACO_ISA::store(split[0], first);
        TACO_ISA::store(split[1], second);
        for (int64_t lane = 0; lane < count; ++lane) {
            x[2 * (i + lane)] = split[0][lane];
            x[2 * (i + lane) + 1] = split[1][lane];
        }
    }
};

// Turns pairs [begin, end) of each head by the angles of one position. cosines, sines:
// [rotary_dim / 2].
template <class Pairs>
inline void rotate_pairs(Pairs pairs, float* heads, const Rotation& rotation, int64_t begin,
                         int64_t end, const float* cosines, const float* sines) {
    for (int64_t head = 0; head < rotation.num_heads; ++head) {
        float* x = heads + head * rotation.head_stride;
        for (int64_t i = begin; i < end; i += LANES) {
            const int64_t count = std::min<int64_t>(end - i, LANES);
            const F32 cosine = load_lanes(cosines + i, count), sine = load_lanes(sines + i, count);
            F32 first, second;
            pairs.load(x, i, count, first, second);
            pairs.store(x, i, count, sub(mul(first, cosine), mul(second, sine)),
                        add(mul(second, cosine), mul(first, sine)));
        }
    }
}

// Rotates the heads of one row in place. `heads` points to the first rotated number of the first
// head; axis a of the row's position is positions[a * axis_stride].
inline void rotate_row(const Rotation& rotation, float* heads, const int32_t* positions,
                       int64_t axis_stride = 0) {
    const int64_t half = rotation.rotary_dim / 2;
    const auto rotate = [&](int64_t begin, int64_t end, int64_t position) {
        const float* cosines = rotation.cosines + position * half;
        const float* sines = rotation.sines + position * half;
        if (rotation.style == RotaryStyle::half) {
            rotate_pairs(HalfPairs{half}, heads, rotation, begin, end, cosines, sines);
        } else {
            rotate_pairs(InterleavedPairs{}, heads, rotation, begin, end, cosines, sines);
        }
    };
    if (rotation.num_sections == 0) return rotate(0, half, *positions);
    int64_t begin = 0;
    for (int64_t axis = 0; axis < rotation.num_sections; ++axis) {
        const int64_t end = begin + rotation.sections[axis];
        rotate(begin, end, positions[axis * axis_stride]);
        begin = end;
    }
}

}  // namespace TACO_ISA
