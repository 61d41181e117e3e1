// The magnitudes of a row of numbers, on which the scale of its int8 form depends.
#pragma once

#include <cmath>

#include "isa/vector_math.h"

namespace TACO_ISA {

struct RowMagnitudes {
    F32 greatest = zero(), sum = zero();

    void add(F32 values) {
        const F32 magnitudes = abs(values);
        greatest = max(magnitudes, greatest);
        sum = TACO_ISA::add(sum, magnitudes);
    }

    float total() const { return reduce_add(sum); }
    // NaN if a value is: the greatest of some numbers leaves NaN out, but int8 has no NaN, so the
    // scale must be one.
    float top() const {
        const float all = total();
        return std::isnan(all) ? all : reduce_max(greatest);
    }
};

}  // namespace TACO_ISA
