// Vectors over arrays whose length is no multiple of sixteen.
#pragma once

#include <algorithm>

#include "isa/vec.h"

namespace TACO_ISA {

// The first `count` < 16 numbers at p, then `fill`.
inline F32 load_first(const float* p, int64_t count, float fill = 0) {
    float numbers[LANES];
    std::fill(std::copy_n(p, count, numbers), numbers + LANES, fill);
    return load(numbers);
}
inline void store_first(float* p, F32 v, int64_t count) {
    float numbers[LANES];
    store(numbers, v);
    std::copy_n(numbers, count, p);
}

}  // namespace TACO_ISA
