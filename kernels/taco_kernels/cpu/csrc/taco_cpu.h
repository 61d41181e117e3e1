// The C ABI of libtaco_cpu.so: what Python calls through ctypes.
//
// Pointers are raw, shapes and strides come with them, and the caller has checked both. An
// operation runs on all threads of its pool and returns when it is done; two callers of one pool
// take turns. Entry points of a part stand in abi_<part>.cpp.
#pragma once

#include <cstdint>

#define TACO_API extern "C" __attribute__((visibility("default")))

// Threads, and the instruction set that they compute with.
struct TacoPool;

// Of the sources that this library was built from: library.py refuses one that is stale.
TACO_API const char* taco_source_hash();

// Names of the instruction sets in this library, from the least to the best; null past the last.
TACO_API const char* taco_isa_name(int32_t index);
// What this machine lacks for that set, or null.
TACO_API const char* taco_isa_obstacle(int32_t index);

// `num_threads` counts the calling thread, which takes part as thread 0. The others are bound to
// cpus[1], cpus[2], ... unless `cpus` is null. Null if a thread could not be started.
TACO_API TacoPool* taco_pool_create(int32_t num_threads, const int32_t* cpus, int32_t isa_index);
TACO_API void taco_pool_destroy(TacoPool* pool);
// To be called in the child of a fork, which has none of the threads, before anything else.
TACO_API void taco_pool_forget_threads(TacoPool* pool);

// Sizes of an item of encoded rows with the pool's instruction set, in bytes.
TACO_API int64_t taco_pool_bf16_operand_bytes(const TacoPool* pool);
TACO_API int64_t taco_pool_int8_operand_bytes(const TacoPool* pool);

// Packed matrices and products with them (packing.h, matrix.h). ranks: [rows->count], scratch.
struct Matrix;
struct Packing;
struct PartialSum;
struct Product;
struct Rows;
TACO_API void taco_pack(TacoPool* pool, const Packing* packing);
TACO_API void taco_encode_rows(TacoPool* pool, int32_t type, int64_t count, int64_t k,
                               const float* rows, int64_t stride, void* out, float* scales);
TACO_API void taco_multiply(TacoPool* pool, const Product* product);
TACO_API void taco_multiply_argmax(TacoPool* pool, const Rows* rows, const Matrix* matrix,
                                   uint64_t* ranks, int32_t* columns, PartialSum* sums,
                                   float* logprobs);

// Attention over the paged cache (kv_cache.h).
struct KVCache;
struct Batch;
struct KVCopies;
struct KeyValueRows;
struct Attention;
TACO_API void taco_write_kv(TacoPool* pool, const KVCache* cache, const Batch* batch, int64_t layer,
                            const KeyValueRows* rows);
// Copies of tokens that continue their sequences, in all layers (copy_kv.h).
TACO_API void taco_append_kv(TacoPool* pool, const KVCache* cache, const KVCopies* copies);
// Bytes that `taco_attend` needs at Attention::workspace.
TACO_API int64_t taco_attention_workspace(const TacoPool* pool, const Attention* attention,
                                          int32_t num_threads);
TACO_API void taco_attend(TacoPool* pool, const Attention* attention);

// A decoder's step, and its last stage (decoder.h); `*_bytes` say what each needs at `scratch`.
struct Decoder;
struct Step;
struct Logits;
TACO_API int64_t taco_decoder_forward_bytes(const TacoPool* pool, const Decoder* decoder,
                                            const Step* step);
TACO_API void taco_decoder_forward(TacoPool* pool, const Decoder* decoder, const Step* step);
TACO_API int64_t taco_decoder_logits_bytes(const TacoPool* pool, const Decoder* decoder,
                                           const Logits* logits);
TACO_API void taco_decoder_logits(TacoPool* pool, const Decoder* decoder, const Logits* logits);

// Rows changed number by number (elementwise.h).
struct NormRows;
struct RotaryRows;
struct Mapped;
TACO_API void taco_norm_rows(TacoPool* pool, const NormRows* norm);
TACO_API void taco_rotate_rows(TacoPool* pool, const RotaryRows* rotary);
TACO_API void taco_map(TacoPool* pool, const Mapped* mapped);

// From logits to tokens (sampling.h).
struct LogitRows;
struct Choice;
struct Penalties;
struct Logprobs;
// Bytes that the two need at `scratch`.
TACO_API int64_t taco_sampling_scratch(const LogitRows* logits, int32_t num_threads);
TACO_API void taco_choose_tokens(TacoPool* pool, const Choice* choice);
TACO_API void taco_gather_logprobs(TacoPool* pool, const Logprobs* wanted);
TACO_API void taco_penalize(TacoPool* pool, const Penalties* penalties);

// The lookahead cache (lookahead_cache.h). One caller at a time; only drafting uses the pool.
class LookaheadCache;
struct LookaheadOptions;
struct LookaheadSequences;
struct LookaheadTokens;
struct LookaheadTrees;
TACO_API LookaheadCache* taco_lookahead_create(const LookaheadOptions* options);
TACO_API void taco_lookahead_destroy(LookaheadCache* cache);
// What the sequences' own indexes take now.
TACO_API int64_t taco_lookahead_local_bytes(const LookaheadCache* cache);
TACO_API void taco_lookahead_learn(LookaheadCache* cache, const LookaheadSequences* sequences);
TACO_API void taco_lookahead_join(LookaheadCache* cache, const LookaheadSequences* sequences);
TACO_API void taco_lookahead_leave(LookaheadCache* cache, const int32_t* slots, int64_t count);
TACO_API void taco_lookahead_clear(LookaheadCache* cache);
TACO_API void taco_lookahead_append(LookaheadCache* cache, const LookaheadTokens* tokens);
// Returns the number of nodes of all trees.
TACO_API int64_t taco_lookahead_draft(TacoPool* pool, LookaheadCache* cache,
                                      const LookaheadTrees* trees);

// Trees of drafts (draft_trees.h).
struct DraftTrees;
// Whether columns of `size` can be trees of at most so many nodes each.
TACO_API bool taco_are_draft_trees(const DraftTrees* trees, int64_t size, const int32_t* max_nodes,
                                   int32_t vocab_size, int32_t num_classes);
// The accepted path of each tree; returns how many were kept of what was chosen.
TACO_API int64_t taco_accept_drafts(const DraftTrees* trees, const int64_t* chosen, int32_t* kept,
                                    int32_t* num_kept);

// Which drafts are worth verifying (draft_choice.h). One caller at a time.
class DraftChoice;
struct DraftLimits;
struct ChosenDrafts;
TACO_API DraftChoice* taco_draft_choice_create(const float* priors, int32_t num_classes,
                                               int32_t num_slots);
TACO_API void taco_draft_choice_destroy(DraftChoice* choice);
TACO_API void taco_draft_choice_start(DraftChoice* choice, const int32_t* slots, int64_t count);
// Returns the number of nodes that are chosen.
TACO_API int64_t taco_draft_choice_choose(DraftChoice* choice, const DraftTrees* trees,
                                          const DraftLimits* limits, ChosenDrafts* chosen);
TACO_API void taco_draft_choice_learn(DraftChoice* choice, const int32_t* slots,
                                      const int32_t* num_tokens, const int32_t* token_ids,
                                      int64_t count);
TACO_API void taco_draft_choice_observe_step(DraftChoice* choice, int64_t num_tokens,
                                             double seconds);
TACO_API bool taco_draft_choice_is_ready(const DraftChoice* choice);
// Seconds of steps of `first`, `first` + 1, ... tokens, once a step has been observed.
TACO_API void taco_draft_choice_estimate(DraftChoice* choice, int64_t first, int64_t count,
                                         double* seconds);
TACO_API void taco_draft_choice_chances(const DraftChoice* choice, const DraftTrees* trees,
                                        double* chances);
