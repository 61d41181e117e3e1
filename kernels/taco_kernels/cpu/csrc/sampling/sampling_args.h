// Arguments of the sampling kernels. The structs are part of the C ABI.
#pragma once

#include "runtime/types.h"

// A row is processed in groups of tokens, each with a greatest logit and a sum of weights. Threads
// share a row by segments of groups. Both have fixed positions, so that no sum depends on the
// thread.
constexpr int64_t GROUP_TOKENS = 256;
constexpr int64_t SEGMENT_GROUPS = 64;

// The token of a row whose greatest logit is not finite: there is no distribution to sample from.
constexpr int64_t NO_TOKEN = -1;

// Tokens of a part of a row's sum of exp(logit - max): see log_sum_exp.h.
constexpr int64_t PARTIAL_SUM_PANELS = 4;
constexpr int64_t PARTIAL_SUM_TOKENS = PARTIAL_SUM_PANELS * PANEL;
struct PartialSum {
    float maximum;  // the greatest of the part's logits, or the lowest number if all are -inf
    float sum;      // of exp(logit - maximum)
};
inline int64_t num_partial_sums(int64_t vocab_size) {
    return ceil_div(vocab_size, PARTIAL_SUM_TOKENS);
}

struct LogitRows {
    float* data;
    int64_t count, vocab_size, stride;

    float* row(int64_t index) const { return data + index * stride; }
    int64_t num_groups() const { return ceil_div(vocab_size, GROUP_TOKENS); }
    int64_t num_segments() const { return ceil_div(num_groups(), SEGMENT_GROUPS); }
};

// One token per row, as in taco_worker.sampling.draw: the most likely one (the lowest id among
// equals) or a random one of those that the filters keep; NO_TOKEN where a logit is NaN or
// infinite, or all are -inf.
struct SamplingMetadata {
    LogitRows logits;
    const float* temperature;  // [count], 0 is the most likely token; the others may be null
    const float* min_p;        // [count], 0 is off
    const int32_t* top_k;      // [count], 0 is off
    const float* top_p;        // [count], 1 is off
    const double* uniforms;    // [count] in [0, 1), of the random rows
    int64_t* token_ids;        // [count]
    void* scratch;             // `choice_scratch` bytes, aligned to 64
};

// Penalties on the logits of some rows that depend on the tokens of their sequences.
struct Penalties {
    LogitRows logits;
    int64_t count;
    const int64_t* rows;    // [count], rows of the logits, each at most once
    const int32_t* tokens;  // [any, tokens_stride]
    int64_t tokens_stride;
    const int32_t* sequences;   // [count], rows of `tokens`
    const int32_t* starts;      // [count], where the output begins
    const int32_t* lengths;     // [count], where it ends
    const float* repetition;    // [count], 1 is off
    const float* presence;      // [count], 0 is off
    const float* frequency;     // [count], 0 is off
    const int32_t* ngram_size;  // [count], 0 is off
    int32_t* counts;            // [num_threads, vocab_size], all 0 between calls
};

// Log probabilities of one token per row and of the most likely ones.
struct Logprobs {
    LogitRows logits;
    const int64_t* token_ids;  // [count]
    const int32_t* num_top;    // [count], at most vocab_size
    int64_t width;             // columns of ids and values: one more than the largest num_top
    int64_t* ids;              // [count, width]: the token, then the most likely ones, best first
    float* values;             // [count, width]
    int64_t* ranks;            // [count], of the token, from 1
    void* scratch;             // `choice_scratch` bytes, aligned to 64
};
