// Arguments of elementwise kernels (norms, rotary embedding, activations) for tests and benchmarks.
// The decoder calls norm.h, rotary.h and vector_math.h inside its own loops. The structs are part
// of the C ABI.
#pragma once

#include "matmul/matrix.h"

struct NormRows {
    NormKind kind;
    float eps;
    int64_t count, size;
    int64_t num_groups;  // groups of `size` columns that are normed alone, such as heads; or 1
    const float* rows;   // [count, stride]
    int64_t stride;
    const float* weight;    // [size], or [num_groups, size]; null: 1
    const float* bias;      // as weight; null: 0
    int64_t weight_stride;  // floats from a group's weight and bias to the next group's, or 0
    DType type;             // of the matrix that multiplies the rows: type of `out`
    void* out;              // [count, out_stride], as the operands of `type`; of several groups f32
    int64_t out_stride;
    RowScale* scales;  // [count], int8 only
};

// How the heads of a row are rotated.
struct Rotation {
    RotaryStyle style;
    int64_t num_heads, head_stride;  // floats from one head to the next
    int64_t rotary_dim;              // numbers of a head that are rotated, even
    const float* cosines;            // [number of positions, rotary_dim / 2]
    const float* sines;
    int64_t num_sections;     // position axes; 0: one position turns all pairs
    const int32_t* sections;  // [num_sections], pairs that each axis turns (M-RoPE, Qwen2-VL)
};

struct RotaryRows {
    Rotation rotation;
    int64_t count;
    float* rows;  // [count, stride], from the first rotated number on; rotated in place
    int64_t stride;
    const int32_t* positions;  // [axes, count]
};

// Activations, and the functions that they are made of.
enum class Function : int32_t {
    relu = int32_t(Activation::relu),
    gelu = int32_t(Activation::gelu),
    gelu_tanh = int32_t(Activation::gelu_tanh),
    silu = int32_t(Activation::silu),
    relu2 = int32_t(Activation::relu2),
    quick_gelu = int32_t(Activation::quick_gelu),
    exp = 16,
    tanh,
    erf,
    exp2,
    exp2_for_bf16,
    silu_for_bf16,
    softplus,
};

struct Mapped {
    Function function;
    int64_t count;
    const float* numbers;
    float* out;
};

struct ActivatedRows {
    Activation activation;
    float alpha, limit;  // of Activation::swiglu_clipped
    int64_t count, size;
    const float* rows;  // [count, stride]; the gate of gated rows
    const float* up;    // [count, stride], of gated rows, or null
    int64_t stride;
    float* out;  // [count, out_stride]
    int64_t out_stride;
};

enum class RowOpKind : int32_t { add, scale, cap, clip, gate, xielu, multiply };

// x += number * y, x *= number, x = number * tanh(x / number), x within [-number, number],
// x *= sigmoid(y), xIELU of x with the four numbers y, x *= y.
struct RowOp {
    RowOpKind kind;
    float number;
    int64_t count, size;
    float* rows;  // x: [count, stride]
    int64_t stride;
    const float* other;  // y: [count, other_stride], or null
    int64_t other_stride;
    int64_t other_size;  // of y: size, or of a gate 1, or of xielu 4
};
