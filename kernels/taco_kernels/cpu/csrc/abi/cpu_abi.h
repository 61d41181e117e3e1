// The C ABI of the CPU kernels in libtaco_kernels.so, which Python calls through ctypes.
//
// Pointers are raw. Shapes and strides are passed beside them, and the caller has checked both. An
// operation runs on all threads of its pool and returns when it is done; concurrent callers of one
// pool take turns. abi/<subject>.cpp defines the functions of a subject.
#pragma once

#include "abi/native_abi.h"

// Hash of the sources that this library was built from: library.py rejects a stale library.
TACO_API const char* taco_source_hash();

// Names of the instruction sets in this library, from the smallest to the best; null past the last.
TACO_API const char* taco_isa_name(int32_t index);
// What this machine lacks for that set, or null.
TACO_API const char* taco_isa_missing_feature(int32_t index);

// Starts a pool. `num_threads` counts the calling thread, which takes part as thread 0. The others
// are bound to cpus[1], cpus[2], ... unless `cpus` is null. Returns null if a thread could not be
// started.
TACO_API TacoPool* taco_pool_create(int32_t num_threads, const int32_t* cpus, int32_t isa_index);
TACO_API void taco_pool_destroy(TacoPool* pool);
// Call this first in the child of a fork, which has none of the threads.
TACO_API void taco_pool_forget_threads(TacoPool* pool);
// Records what the threads do from the next operation on (runtime/trace.h). spans: [num_threads]
// [capacity], zeroed; null stops.
struct TraceSpan;
TACO_API void taco_pool_trace(TacoPool* pool, TraceSpan* spans, int64_t capacity);

// Bytes of an operand with the pool's instruction set.
TACO_API int64_t taco_pool_bf16_operand_bytes(const TacoPool* pool);
TACO_API int64_t taco_pool_int8_operand_bytes(const TacoPool* pool);
// Operands of bf16 and int8 matrices have memory for a multiple of as many rows, and lie in tiles
// of them: matmul/operand_layout.h.
TACO_API int64_t taco_pool_operand_tile_rows(const TacoPool* pool);

// Packed matrices and products with them (matmul/matrix.h). ranks: [rows->count],
// scratch. masks: of the rows, or null.
struct CodePacking;
struct CodeWords;
struct ColumnOrder;
struct HeadProduct;
struct Matrix;
struct Packing;
struct PartialSum;
struct Product;
struct RowScale;
struct Rows;
struct TokenMasks;
// Packs one after the other.
TACO_API void taco_pack(TacoPool* pool, const Packing* packings, int64_t count);
// words: the codes (matmul/codes/code_packer.h), or null: those of the packing.
TACO_API void taco_pack_codes(TacoPool* pool, const CodePacking* packing, const CodeWords* words);
// Copies rows of W, of f32 or bf16 operands, to `out`: [count, matrix->k].
TACO_API void taco_read_rows(TacoPool* pool, const Matrix* matrix, int64_t count,
                             const int64_t* rows, float* out);
TACO_API void taco_encode_rows(TacoPool* pool, int32_t type, int64_t count, int64_t k,
                               const float* rows, int64_t stride, void* out, RowScale* scales,
                               const ColumnOrder* order);
// Likewise encodes operands of a bf16 matrix, with a stride of padded_k, as int8.
TACO_API void taco_encode_operands(TacoPool* pool, int64_t count, int64_t k, const void* rows,
                                   void* out, RowScale* scales, const ColumnOrder* order);
// Computes products one after the other.
TACO_API void taco_multiply(TacoPool* pool, const Product* products, int64_t count);
TACO_API void taco_multiply_heads(TacoPool* pool, const HeadProduct* product);
TACO_API void taco_multiply_argmax(TacoPool* pool, const Rows* rows, const Matrix* matrix,
                                   uint64_t* ranks, int32_t* columns, PartialSum* sums,
                                   float* logprobs, const TokenMasks* masks);

// Mixture of experts (experts/expert_args.h).
struct Routing;
struct ExpertProduct;
TACO_API void taco_route(TacoPool* pool, const Routing* routing);
// Bytes that `taco_multiply_experts` needs at ExpertProduct::scratch, from the shapes alone.
TACO_API int64_t taco_experts_scratch_bytes(const TacoPool* pool, const ExpertProduct* product);
TACO_API void taco_multiply_experts(TacoPool* pool, const ExpertProduct* product);

// A product whose rows have LoRA adapters (experts/adapter_args.h).
struct AdapterProduct;
TACO_API int64_t taco_adapters_scratch_bytes(const TacoPool* pool, const AdapterProduct* adapters);
TACO_API void taco_multiply_adapted(TacoPool* pool, const AdapterProduct* adapters,
                                    const Product* product);

// Attention over the paged cache (attention/kv_cache.h).
struct KVCache;
struct Batch;
struct KVCopies;
struct KeyValueRows;
struct Attention;
TACO_API void taco_write_kv(TacoPool* pool, const KVCache* cache, const Batch* batch, int64_t entry,
                            const KeyValueRows* rows);
// Copies tokens to the ends of their sequences, in all entries (attention/copy_kv.h).
TACO_API void taco_append_kv(TacoPool* pool, const KVCache* cache, const KVCopies* copies);
// Bytes that `taco_attend` needs at Attention::workspace with this pool: with fewer threads query
// blocks may be larger.
TACO_API int64_t taco_attention_workspace(TacoPool* pool, const Attention* attention);
TACO_API void taco_attend(TacoPool* pool, const Attention* attention);

// Convolutions and linear recurrences over sequences (recurrence/recurrence_args.h).
struct Convolution;
struct Recurrence;
TACO_API void taco_convolve(TacoPool* pool, const Convolution* convolution);
TACO_API void taco_recur(TacoPool* pool, const Recurrence* recurrence);

// `*_bytes` functions return it if they run out of memory. Allocating it always fails.
constexpr int64_t TOO_MANY_BYTES = int64_t(1) << 62;

// A step of a program, and its logits (program/program_args.h); `*_bytes` return the bytes that
// each needs at `scratch`.
struct Program;
struct Step;
struct Logits;
TACO_API int64_t taco_program_forward_bytes(TacoPool* pool, const Program* program,
                                            const Step* step);
TACO_API void taco_program_forward(TacoPool* pool, const Program* program, const Step* step);
TACO_API int64_t taco_program_logits_bytes(const TacoPool* pool, const Program* program,
                                           const Logits* logits);
TACO_API void taco_program_logits(TacoPool* pool, const Program* program, const Logits* logits);
// The two of a step whose logits are those of its hidden states.
TACO_API void taco_program_decode(TacoPool* pool, const Program* program, const Step* step,
                                  const Logits* logits);

// Elementwise kernels over rows (elementwise/elementwise_args.h).
struct NormRows;
struct RotaryRows;
struct Mapped;
struct ActivatedRows;
struct RowOp;
TACO_API void taco_norm_rows(TacoPool* pool, const NormRows* norm);
TACO_API void taco_rotate_rows(TacoPool* pool, const RotaryRows* rotary);
TACO_API void taco_map(TacoPool* pool, const Mapped* mapped);
TACO_API void taco_activate_rows(TacoPool* pool, const ActivatedRows* rows);
TACO_API void taco_apply_row_op(TacoPool* pool, const RowOp* op);

// Sampling (sampling/sampling_args.h).
struct LogitRows;
struct SamplingMetadata;
struct Penalties;
struct Logprobs;
// Bytes that sample_tokens and gather_logprobs need at `scratch`.
TACO_API int64_t taco_sampling_scratch(const LogitRows* logits, int32_t num_threads);
TACO_API void taco_sample_tokens(TacoPool* pool, const SamplingMetadata* metadata);
TACO_API void taco_gather_logprobs(TacoPool* pool, const Logprobs* wanted);
TACO_API void taco_mask_logits(TacoPool* pool, const LogitRows* logits, const TokenMasks* masks);
TACO_API void taco_penalize(TacoPool* pool, const Penalties* penalties);
