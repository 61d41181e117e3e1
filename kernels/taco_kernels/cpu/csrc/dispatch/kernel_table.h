// The table of kernels of one instruction set, from which dispatch.cpp chooses.
//
// All threads of a region call an entry together; it ends with a barrier.
#pragma once

#include <atomic>

#include "attention/kv_cache.h"
#include "elementwise/elementwise_args.h"
#include "experts/adapter_args.h"
#include "experts/expert_args.h"
#include "matmul/matrix.h"
#include "program/program_args.h"
#include "recurrence/recurrence_args.h"
#include "runtime/parallel.h"
#include "sampling/sampling_args.h"
#include "sampling/token_masks.h"

struct KeyValueRows {
    const float* keys;  // [num_tokens, key_stride], head after head, rotated already
    int64_t key_stride;
    const float* values;  // likewise; null for a latent entry
    int64_t value_stride;
};

// What follows the LM head: logits become cap * tanh(scale * logit / cap), without a cap of 0.
struct LogitTransform {
    float scale, cap;
};

// Arguments of multiply_argmax: the column with the greatest value of each row of a product.
struct Argmax {
    std::atomic<uint64_t>* ranks;  // [rows.count], scratch of the kernel
    int32_t* columns;              // [rows.count], the first of the greatest values, or NO_TOKEN
    PartialSum* sums;  // [rows.count, num_partial_sums(matrix.n)], scratch of the kernel; or null
    float* logprobs;   // [rows.count], of `columns`, with the values as logits; or null
    LogitTransform transform;
    TokenMasks masks;  // of the rows; without `logprobs`, which are those of all columns
};

struct Kernels {
    const char* name;

    // Bytes of an operand, and the multiple of rows of bf16 or int8 operands: what a caller
    // allocates for Rows.
    int64_t bf16_operand_bytes, int8_operand_bytes, operand_tile_rows;

    // Encodes float rows [count, k] with `stride` as operands of a matrix of `type`; out is as Rows
    // with the stride padded_k, scales [count] and an order for int8 (matmul/encode_int8.h).
    void (*encode_rows)(Thread&, DType type, int64_t count, int64_t k, const float* rows,
                        int64_t stride, void* out, RowScale* scales, const ColumnOrder& order);
    // Encodes rows [count, k] of operands of a bf16 matrix as operands of an int8 matrix, likewise.
    void (*encode_operands)(Thread&, int64_t count, int64_t k, const void* rows, void* out,
                            RowScale* scales, const ColumnOrder& order);
    void (*multiply)(Thread&, const Product&);
    void (*multiply_heads)(Thread&, const HeadProduct&);
    void (*multiply_argmax)(Thread&, const Rows&, const Matrix&, const Argmax&);
    void (*pack)(Thread&, const Packing&);
    // Copies rows of W, of f32 or bf16 operands, to `out`: [count, matrix.k].
    void (*read_rows)(Thread&, const Matrix&, int64_t count, const int64_t* rows, float* out);
    void (*route)(Thread&, const Routing&);
    // Bytes that `multiply_experts` needs at ExpertProduct::scratch. They depend on the shapes
    // only.
    int64_t (*experts_scratch_bytes)(const ExpertProduct&);
    void (*multiply_experts)(Thread&, const ExpertProduct&);
    // Likewise of adapters; returns what a product takes, which is in the scratch memory.
    int64_t (*adapters_scratch_bytes)(const AdapterProduct&);
    AdapterRows (*multiply_adapters)(Thread&, const AdapterProduct&);
    void (*write_kv)(Thread&, const KVCache&, const Batch&, int64_t entry, const KeyValueRows&);
    // Bytes that `attend` needs at Attention::workspace. Ignores the pointers and the strides.
    int64_t (*attention_workspace)(const Attention&, int num_threads);
    void (*attend)(Thread&, const Attention&);
    void (*convolve)(Thread&, const Convolution&);
    void (*recur)(Thread&, const Recurrence&);
    void (*norm_rows)(Thread&, const NormRows&);
    void (*rotate_rows)(Thread&, const RotaryRows&);
    void (*map)(Thread&, const Mapped&);
    void (*activate_rows)(Thread&, const ActivatedRows&);
    void (*apply_row_op)(Thread&, const RowOp&);
    void (*sample_tokens)(Thread&, const SamplingMetadata&);
    void (*mask_logits)(Thread&, const LogitRows&, const TokenMasks&);
    void (*gather_logprobs)(Thread&, const Logprobs&);
    // One step of a program, and its logits; `*_bytes` return the bytes that each needs at
    // `scratch`.
    int64_t (*forward_bytes)(const Program&, const Step&, int num_threads);
    void (*forward)(Thread&, const Program&, const Step&);
    int64_t (*logits_bytes)(const Program&, const Logits&);
    void (*logits)(Thread&, const Program&, const Logits&);
};
