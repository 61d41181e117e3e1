// Loads and stores of arrays whose length is no multiple of sixteen.
#pragma once

#include <algorithm>

#include "isa/vec.h"

namespace TACO_ISA {

// Loads the first `count` < 16 numbers at p, then `fill`.
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

// Loads and stores of up to sixteen numbers.
inline F32 load_lanes(const float* p, int64_t count) {
    return count == LANES ? load(p) : load_first(p, count);
}
inline void store_lanes(float* p, F32 v, int64_t count) {
    if (count == LANES) {
        store(p, v);
    } else {
        store_first(p, v, count);
    }
}

// Rounds numbers from -127 to 127 and stores them as int8 operands.
inline void store_i8_operand(Int8Operand* p, F32 v) {
    int8_t quantized[LANES];
    store_i8(quantized, v);
    encode_i8(p, quantized);
}

}  // namespace TACO_ISA
