// Arguments of LoRA adapters (Hu et al. 2021, "LoRA", section 4.1), which add B (A x) to the sums
// of a product, those of the adapter of each row. The structs are part of the C ABI.
#pragma once

#include "matmul/matrix.h"

// What a product takes from its adapters: the rows of A x, and B.
struct Adapters {
    int64_t count;
    const Matrix* a;  // [count], [rank, k] of one shape; without data: the adapter adds nothing
    // [count], in the order of the product's packed columns. A panel has the k of its range alone,
    // from 0 on: B of a fused weight has blocks, and is zero elsewhere.
    const Matrix* b;
    // [count], of each panel of b its first k and the k after the last
    const int32_t* const* ranges;
};

// Computes A x of all rows that have an adapter.
struct AdapterProduct {
    Adapters adapters;
    Rows rows;              // operands of the matrices' type
    const int32_t* ids;     // of tokens, each below the number of adapters; negative: none
    const int32_t* tokens;  // [rows.count], of each row; null: row i is token i
    void* scratch;          // `adapters_scratch_bytes`, aligned to 64; holds the results

    int32_t id_of(int64_t row) const {
        const int32_t id = ids[tokens ? tokens[row] : row];
        return id >= 0 && adapters.a[id].data ? id : -1;
    }
};
