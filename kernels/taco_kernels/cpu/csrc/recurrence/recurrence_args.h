// Arguments of convolutions and linear recurrences over sequences
// (taco_kernels/reference/recurrence.py has the equations). The structs are part of the C ABI.
#pragma once

#include <cstdint>

// The states of a step's sequences: one row of `memory` holds those of all ops for a sequence.
struct StateRows {
    float* memory;
    int64_t stride;               // numbers from one row to the next
    const int32_t* rows;          // [num_seqs], get the state after a sequence's tokens
    const int32_t* sources;       // [num_seqs], hold that before them; negative: zeros
    const int32_t* saved_tokens;  // [num_seqs], tokens after which it is also stored; 0: none
    const int32_t* saved_rows;    // [num_seqs], where
};

// The sequences of a step, and the state of one op.
struct StateBatch {
    int64_t num_seqs;
    const int32_t* query_start;  // [num_seqs + 1], first token of each
    StateRows states;
    int64_t start;  // first number of the op's state in a row
};

// Columns of rows of tokens.
struct TokenColumns {
    float* data;
    int64_t stride;  // numbers from one token to the next
};

// A causal convolution of each column: out[t] = act(bias + sum of weight[j] x[t - width + 1 + j]).
// The state is [width - 1, columns], the latest inputs, oldest first.
struct Convolution {
    int64_t columns, width;
    const float* weight;  // [width, columns]
    const float* bias;    // [columns], or null
    bool has_silu;
    TokenColumns x, out;  // may be the same
    StateBatch batch;
};

enum class RecurrenceKind : int32_t { delta_rule = 0, state_space = 1 };

// The state is [num_heads, key_dim, value_dim].
struct Recurrence {
    RecurrenceKind kind;
    int64_t num_heads, num_key_heads, key_dim, value_dim;
    const float* rates;  // [num_heads], negative
    const float* bias;   // of `decay`
    const float* skip;   // state_space: [num_heads]
    // state_space: limits of the step. delta_rule: its beta is at most max_number.
    float min_number, max_number;
    bool decays_columns;  // delta_rule: `decay` is [num_heads, key_dim]; else [num_heads]
    // delta_rule changes all but `value`: it leaves unit vectors, factors and strengths there.
    // state_space leaves the steps in `decay`, and has no beta.
    TokenColumns query, key, value, decay, beta;
    TokenColumns out;
    StateBatch batch;
};
