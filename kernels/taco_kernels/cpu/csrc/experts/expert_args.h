// Arguments of a mixture of experts: the router's choice, and the product of the chosen experts.
// The structs are part of the C ABI.
#pragma once

#include "matmul/matrix.h"
#include "runtime/types.h"

// Limits of a router: its scores lie on a thread's stack.
constexpr int64_t MAX_EXPERTS = 1024, MAX_TOP_K = 64;

enum class RouterKind : int32_t {
    softmax = 0,       // weights are the softmax over all experts; the choice may add a bias
    softmax_topk = 1,  // weights are the softmax over the chosen experts
    sigmoid = 2,       // weights are sigmoids; the choice adds a bias
    sparsemixer = 3,   // PhiMoE
};

enum class GroupScore : int32_t { max = 0, sum_of_two = 1 };

// What a router does: see taco_kernels.router.
struct Router {
    RouterKind kind;
    int64_t num_experts, top_k;
    bool renormalize;
    float scale;
    int64_t num_groups, top_groups;
    GroupScore group_score;
    float jitter;
};

// The `top_k` best experts of each row, best first; of equal scores the lower index is first. NaN
// is the greatest score.
struct Routing {
    Router router;
    int64_t count;
    const float* logits;  // [count, num_experts]
    int64_t logits_stride;
    const float* bias;  // [num_experts], or null
    int32_t* ids;       // [count, top_k]
    int64_t ids_stride;
    float* weights;  // [count, top_k]
    int64_t weights_stride;
};

// How gate and up become one number: `activate_gated` of vector_math.h.
struct GatedActivation {
    Activation function;
    float alpha, limit;  // of Activation::swiglu_clipped
};

// out = sum over the chosen experts e of weight * down_e(act(gate_e(x), up_e(x))), in the order of
// the choice. A row's bits do not depend on the other rows.
struct ExpertProduct {
    Rows rows;  // operands of the matrices' type
    int64_t top_k, num_experts;
    const int32_t* ids;  // [rows.count, top_k], each from 0 to num_experts - 1
    int64_t ids_stride;
    const float* weights;  // [rows.count, top_k]
    int64_t weights_stride;
    const Matrix* gate_up;  // [num_experts], gated pairs of one shape
    const Matrix* down;     // [num_experts], of one shape
    GatedActivation activation;
    float* out;  // [rows.count, down's n]
    int64_t out_stride;
    bool adds;      // to `out`, instead of storing to it
    void* scratch;  // `experts_scratch_bytes`, aligned to 64
};
