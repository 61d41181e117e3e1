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

// out = B_a (A_a x) with the adapter a of each row (Hu et al. 2021, "LoRA", section 4.1), to be
// added to the sums of a product: in the order of its packed columns. Rows without an adapter get
// -0, which changes no number that it is added to. A row's bits do not depend on the other rows.
struct AdapterProduct {
    Rows rows;  // operands of the matrices' type
    int64_t num_adapters;
    const int32_t* ids;     // of tokens, each below num_adapters; negative: none
    const int32_t* tokens;  // [rows.count], of each row; null: row i is token i
    const Matrix* a;        // [num_adapters], of one shape; without data: the adapter adds nothing
    const Matrix* b;        // [num_adapters], likewise
    int64_t num_panels;     // of each of b, which is a gated pair where the product's matrix is one
    float* out;             // [rows.count, num_panels of columns]
    int64_t out_stride;
    void* scratch;  // `adapters_scratch_bytes`, aligned to 64

    int32_t id_of(int64_t row) const {
        const int32_t id = ids[tokens ? tokens[row] : row];
        return id >= 0 && a[id].data ? id : -1;
    }
};
