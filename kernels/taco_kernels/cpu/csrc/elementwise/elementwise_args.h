// Arguments of elementwise kernels (norms, rotary embedding, activations) for tests and benchmarks.
// The decoder calls norm.h, rotary.h and vector_math.h inside its own loops. The structs are part
// of the C ABI.
#pragma once

#include "runtime/types.h"

struct NormRows {
    NormKind kind;
    float eps;
    int64_t count, size;
    const float* rows;    // [count, size]
    const float* weight;  // [size]
    const float* bias;    // [size], or null
    DType type;           // of the matrix that multiplies the rows: type of `out`
    void* out;            // [count, padded_k(type, size)]
    float* scales;        // [count], int8 only
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

// The activations, then the functions that they are made of.
enum class Function : int32_t {
    relu = int32_t(Activation::relu),
    gelu = int32_t(Activation::gelu),
    gelu_tanh = int32_t(Activation::gelu_tanh),
    silu = int32_t(Activation::silu),
    exp,
    tanh,
    erf,
};

struct Mapped {
    Function function;
    int64_t count;
    const float* numbers;
    float* out;
};
