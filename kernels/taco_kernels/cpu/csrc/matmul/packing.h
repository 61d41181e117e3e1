// How a checkpoint's rows become a packed matrix.
#pragma once

#include "runtime/types.h"

// Rows of W to consecutive columns of the matrix `data` is the memory of. Other columns stay as
// they are, so that a matrix can be packed from several tensors, and in slices as they are read.
struct Packing {
    TableType source_type;
    const void* source;  // [count, k]
    int64_t count, k;
    int64_t stride;  // items from one row of the source to the next
    DType type;
    int64_t first;       // column that takes the first row; of a gated pair, of gate or of up alone
    int64_t panel_step;  // 1, or 2 for the panels of a gated pair
    void* data;          // the first panel; of a gated pair, of gate or of up
    float* scales;       // int8 only: of the first panel's columns
    int32_t* column_sums;
};
