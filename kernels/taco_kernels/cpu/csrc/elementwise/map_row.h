// The loop of the row functions.
#pragma once

#include "isa/partial_vectors.h"

namespace TACO_ISA {

// Writes body(first number, count) for each sixteen numbers of a row; the last may be fewer.
template <class Body>
inline void map_row(int64_t size, float* out, Body body) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store(out + i, body(i, int64_t(LANES)));
    if (i < size) store_first(out + i, body(i, size - i), size - i);
}

}  // namespace TACO_ISA
