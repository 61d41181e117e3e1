// The C ABI of the host code in libtaco_kernels.so: lookahead cache, draft trees and decode steps.
// Workers of any device call it through ctypes. cpu/csrc/abi/cpu_abi.h declares the CPU kernels.
//
// Pointers are raw. Shapes and strides are passed beside them, and the caller has checked both.
#pragma once

#include <cstdint>

#define TACO_API extern "C" __attribute__((visibility("default")))

// Threads, and the instruction set that they compute with (runtime/thread_pool.h).
struct TacoPool;

// The lookahead cache (lookahead/cache.h). One caller at a time; only drafting uses the pool.
class LookaheadCache;
struct LookaheadOptions;
struct LookaheadSequences;
struct LookaheadTokens;
struct LookaheadTrees;
TACO_API LookaheadCache* taco_lookahead_create(const LookaheadOptions* options);
TACO_API void taco_lookahead_destroy(LookaheadCache* cache);
// Bytes that the sequences' own indexes use now.
TACO_API int64_t taco_lookahead_local_bytes(const LookaheadCache* cache);
TACO_API void taco_lookahead_learn(LookaheadCache* cache, const LookaheadSequences* sequences);
TACO_API void taco_lookahead_join(LookaheadCache* cache, const LookaheadSequences* sequences);
TACO_API void taco_lookahead_leave(LookaheadCache* cache, const int32_t* slots, int64_t count);
TACO_API void taco_lookahead_clear(LookaheadCache* cache);
TACO_API void taco_lookahead_append(LookaheadCache* cache, const LookaheadTokens* tokens);
// Returns the number of nodes of all trees.
TACO_API int64_t taco_lookahead_draft(TacoPool* pool, LookaheadCache* cache,
                                      const LookaheadTrees* trees);

// Trees of drafts (drafts/draft_trees.h).
struct DraftTrees;
// Whether columns of `size` items are trees of at most max_nodes[row] nodes each.
TACO_API bool taco_are_draft_trees(const DraftTrees* trees, int64_t size, const int32_t* max_nodes,
                                   int32_t vocab_size, int32_t num_classes);
// Finds the accepted path of each tree; returns the total number of indices in `kept`.
TACO_API int64_t taco_accept_drafts(const DraftTrees* trees, const int64_t* chosen, int32_t* kept,
                                    int32_t* num_kept);

// Draft selection (drafts/draft_selector.h). One caller at a time.
class DraftSelector;
struct DraftLimits;
struct SelectedDrafts;
TACO_API DraftSelector* taco_draft_selector_create(const float* priors, int32_t num_classes,
                                                   int32_t num_slots);
TACO_API void taco_draft_selector_destroy(DraftSelector* selector);
TACO_API void taco_draft_selector_start(DraftSelector* selector, const int32_t* slots,
                                        int64_t count);
// Returns the number of selected nodes.
TACO_API int64_t taco_draft_selector_select(DraftSelector* selector, const DraftTrees* trees,
                                            const DraftLimits* limits, SelectedDrafts* selected);
TACO_API void taco_draft_selector_learn(DraftSelector* selector, const int32_t* slots,
                                        const int32_t* num_tokens, const int32_t* token_ids,
                                        int64_t count);
TACO_API void taco_draft_selector_observe_step(DraftSelector* selector, int64_t num_tokens,
                                               double seconds);
TACO_API bool taco_draft_selector_is_ready(const DraftSelector* selector);
// Expected seconds of steps of `first`, `first` + 1, ... tokens; needs an observed step.
TACO_API void taco_draft_selector_estimate(DraftSelector* selector, int64_t first, int64_t count,
                                           double* seconds);
TACO_API void taco_draft_selector_probabilities(const DraftSelector* selector,
                                                const DraftTrees* trees, double* probabilities);

// Decode steps of a worker's batch (steps/decode_rows.h).
struct SlotColumns;
struct DecodeRows;
// Returns false, and changes nothing, if the rows are not a decode step, or not a valid one.
TACO_API bool taco_begin_decode(const SlotColumns* batch, const int32_t* slots,
                                const int32_t* num_new_tokens, int64_t num_rows,
                                const int32_t* appended_slots, const int32_t* appended_blocks,
                                int64_t num_appended, DecodeRows* rows);
TACO_API void taco_end_decode(const SlotColumns* batch, DecodeRows* rows);

// Codes of checkpoints. 4-bit ones (codes/transpose_nibbles.h): n and k are multiples of eight.
TACO_API void taco_transpose_nibbles(const uint32_t* words, int64_t n, int64_t k,
                                     const int32_t* row, uint32_t* out);
// Whether one of the 8-bit floats is NaN (codes/float8_nans.h).
TACO_API bool taco_has_e4m3_nans(const uint8_t* floats, int64_t count);
