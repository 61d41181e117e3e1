// Element-wise kernels of reductions. Bits do not depend on the processor's instruction set.
#pragma once

#include "collective/types.h"

namespace taco::collective {

// out[i] = reduction(a[i], b[i]) in the type itself: `type` is no 16-bit float. `out` may be `a`.
// Integers wrap; sums of booleans are "or", products "and"; NaN wins in minimum and maximum.
// An average is a sum here: `divide` ends it.
void combine(Type type, Reduction reduction, void* out, const void* a, const void* b, size_t count);

// data[i] /= divisor; integers round towards zero, booleans stay.
void divide(Type type, void* data, size_t count, int64_t divisor);

// Copies, or converts between float32 and a 16-bit float.
void convert(Type to, void* out, Type from, const void* in, size_t count);

// out[i] = inputs[0][i] op inputs[1][i] op ... in this order, in the accumulator type of `type`.
void reduce(Type type, Reduction reduction, void* out, const void* const* inputs, size_t num_inputs,
            size_t count);

}  // namespace taco::collective
