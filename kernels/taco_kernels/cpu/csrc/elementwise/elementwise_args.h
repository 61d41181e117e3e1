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

struct RotaryRows {
    int64_t count, num_heads, head_dim;
    float* rows;  // [count, stride], rotated in place
    int64_t stride;
    const float* cosines;  // [count, head_dim / 2]
    const float* sines;
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
