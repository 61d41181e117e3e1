// Packed weight matrices, and the arguments of packing and of a product. The structs are part of
// the C ABI.
#pragma once

#include <cstdlib>

#include "matmul/codes/code_args.h"
#include "runtime/types.h"
#include "sampling/token_masks.h"

// y = x W^T + bias with W [n, k], packed in panels of sixteen columns of W^T:
//
//     data[panel][k / g][column 0..15][k % g]     g = k_group(type); k padded with zeros
//
// so that each row of 64 bytes (bf16, int8) is a row of an AMX tile, and one vector of operands
// on AVX-512. n is padded to whole panels with zeros.
//
// A gated pair (gate and up of an MLP) is packed alternately: panel 2i holds sixteen columns of
// gate, panel 2i + 1 the same columns of up; n counts both, and each is padded to whole panels.
//
// A sum over k adds its products in the order of k. With `segments` (a power of two, not for int8)
// each of as many equal segments of k is summed so from zero, and their sums are added as a binary
// tree: (s0 + s1) + (s2 + s3). Tensor-parallel processes that each hold whole segments, and add
// their sums as this tree does, so compute the bits of one process. A segment has whole tiles of k.
// int8 needs no segments: its int32 sums are exact, and processes add them before they are scaled.
//
// A matrix of codes has `parts` instead of such panels, one for each kind of rows. `type` is that
// of the operands that it multiplies.
constexpr int64_t MAX_SEGMENTS = 8;

// The order of a row's int8 operands, for matrices whose columns are packed in another order: by
// groups, which checkpoints may give to columns in any order (GPTQ's desc_act).
struct ColumnOrder {
    const int32_t* columns;  // [padded k], the column of x that each operand has; k: zero. Or null
    const int32_t* places;   // [k], the operand that has each column
};

struct Matrix {
    DType type;
    int64_t n, k;
    const void* data;
    const float* scales;         // int8 only: of each column, [padded n]
    const int32_t* column_sums;  // int8 only: of each column's int8 values, [padded n]
    const float* bias;           // [padded n] in the order of the packed columns, or null
    int64_t segments = 1;
    const CodePart* parts = nullptr;  // [num_parts], of a matrix of codes; each panel is in one
    int64_t num_parts = 0;
    ColumnOrder order = {};  // of the operands that it multiplies
    // All weights of its model fit in the last-level cache: they are likely there since the last
    // step. It changes no bit.
    bool is_cached = false;

    int64_t num_panels() const { return ceil_div(n, PANEL); }
    int64_t num_pair_panels() const { return 2 * ceil_div(n / 2, PANEL); }  // of a gated pair
    int64_t panel_bytes() const { return padded_k(type, k) * PANEL * item_bytes(type); }
    // A panel as it is stored: of `panel_bytes` unless it is in a part.
    const void* panel(int64_t index) const {
        if (parts) return part_of(index).panel(index);
        return static_cast<const char*>(data) + index * panel_bytes();
    }
    int64_t stored_panel_bytes() const { return parts ? parts->panel_bytes : panel_bytes(); }
    const CodePart& part_of(int64_t panel) const {
        const CodePart* part = parts;
        while (!part->has_panel(panel)) ++part;
        return *part;
    }
};

// What is done with the sums of a product, sixteen columns at a time, before they are stored.
enum class Epilogue : int32_t {
    store = 0,     // out = act(sum + bias)
    add = 1,       // out += factor * (sum + bias) (out is the float32 residual stream)
    gate_mul = 2,  // out[i] = act(gate[i]) * up[i] of a gated pair; out has n / 2 columns
};

// One value of a row of int8 operands that needs 16 bits: its operand is `x / scale` less
// OUTLIER_STEP * high, where high is a whole number from -127 to 127.
struct Outlier {
    int32_t k = 0;
    // Unsigned bytes that are multiplied with the quad of columns around k: byte k % 4 is the
    // magnitude of high, the others are 0.
    uint32_t quad = 0;

    Outlier() = default;
    Outlier(int32_t k, int32_t high) : k(k), quad(uint32_t(std::abs(high)) << 8 * (k % 4)) {}
    int32_t magnitude() const { return int32_t(quad >> 8 * (k % 4)); }
};

// Values of a row that may be outliers.
constexpr int MAX_OUTLIERS = 16;
// Operands are whole numbers from -127 to 127, so the next multiple of this is never further away.
constexpr float OUTLIER_STEP = 254;

// Some of a row's outliers: those of either sign from `begin` to `end`.
struct OutlierRange {
    uint8_t positive_begin, positive_end, negative_begin, negative_end;

    bool is_empty() const {
        return positive_begin == positive_end && negative_begin == negative_end;
    }
};

// What a row's int8 operands are multiplied with, and the values above their range.
struct RowScale {
    float scale;
    int32_t num_outliers, num_positive;
    Outlier outliers[MAX_OUTLIERS];  // num_positive with high >= 0, then others; each by rising k

    OutlierRange all_outliers() const {
        return {0, uint8_t(num_positive), uint8_t(num_positive), uint8_t(num_outliers)};
    }
};

// Rows of activations as operands. For a matrix of type f32: float. For bf16: the instruction set's
// Bf16Operand. For int8: its Int8Operand with a RowScale per row. k is padded to padded_k with
// zeros (int8: with the encoding of zero). Where a row's operands are: operand_layout.h.
struct Rows {
    int64_t count;
    const void* data;
    int64_t stride;          // items of a row, at least padded_k
    const RowScale* scales;  // int8 only, [count]
};

// A x of the rows of a product, and the B of their adapters (experts/adapter_args.h).
struct AdapterRows {
    const int32_t* places = nullptr;  // [count], the row in `inner` of each row, or -1
    const int32_t* ids = nullptr;     // [count], of its adapter
    const void* inner = nullptr;      // operands of B's type
    int64_t stride = 0;               // items of a row of `inner`
    const Matrix* b = nullptr;
    const int32_t* const* ranges = nullptr;
};

struct Product {
    Rows rows;
    Matrix matrix;
    Epilogue epilogue;
    Activation activation;       // for Epilogue::store and gate_mul
    void* out;                   // [count, columns]; operands as in Rows
    int64_t out_stride;          // items of a row
    bool out_is_operand;         // out holds Bf16Operands, else floats
    float alpha = 0, limit = 0;  // of Activation::swiglu_clipped
    float factor = 1;            // for Epilogue::add
    TokenMasks masks = {};       // of the rows: `out` is undefined where no row of a block needs it
    // Of rows with an adapter, B times these is added to the sums and bias. Without `places` no row
    // has one.
    AdapterRows adapters = {};
};

// out[h] = x[h] W[h]^T for each head h of some rows.
struct HeadProduct {
    int64_t num_heads, count;
    const float* x;  // [count] rows; a head's columns begin `x_head_stride` after the last one's
    int64_t x_stride, x_head_stride;
    Matrix matrix;     // of the first head, without a bias; the others follow, each in whole panels
    void* operands;    // [num_heads] times Rows, scratch of the kernel, unless the matrix is f32
    RowScale* scales;  // int8 only, [num_heads, count], scratch of the kernel
    float* out;        // [count] rows of heads of `matrix.n` columns
    int64_t out_stride, out_head_stride;
};

// Copies rows of W to consecutive columns of the packed matrix in `data`. Other columns stay
// unchanged, so that a matrix can be packed from several tensors, and in slices as they are read.
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
