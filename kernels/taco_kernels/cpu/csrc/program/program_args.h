// A model as a program for the CPU: ops over buffers of rows, one row per token of a step.
//
// Python lowers a model plan to a program (taco_worker/backends/cpu/lowering.py). The structs are
// part of the C ABI: taco_kernels/cpu/program.py declares them again.
#pragma once

#include "attention/kv_cache.h"
#include "experts/adapter_args.h"
#include "experts/expert_args.h"
#include "matmul/matrix.h"
#include "recurrence/recurrence_args.h"

// Rows of an embedding table as the checkpoint stores them; read in place, never copied as a whole.
struct Table {
    const void* data;  // null: the rows of a packed matrix
    int64_t stride;    // items from one row to the next
    TableType type;
};

// A buffer has a row for each token of a step, or of a chunk if it is local.
struct Buffer {
    int64_t columns;     // floats, or operands before padding
    DType type;          // f32: floats; bf16, i8: operands of a matrix of that type
    int64_t num_groups;  // operands: groups of `columns` in a row, each with its scale
    bool is_local;       // written and read inside one stage
    bool clears_tail;    // kernels write its columns alone: the padding is zeroed before a step
    bool is_restricted;  // among the live buffers of a restrict op
};

// Columns of a buffer's rows.
struct Columns {
    int32_t buffer, start;
    int64_t size;
};

enum class OpKind : int32_t {
    embed = 0,
    norm = 1,
    encode = 2,
    linear = 3,
    rope = 4,
    activation = 5,
    add = 6,
    scale = 7,
    cap = 8,
    clip = 9,
    gate = 10,
    copy = 11,
    keep = 12,
    write_kv = 13,
    attend = 14,
    restrict_rows = 15,
    route = 16,
    experts = 17,
    head_linear = 18,
    head_copy = 19,
    input = 20,
    xielu = 21,
    multiply = 22,
    convolve = 23,
    recur = 24,
};

// One op. x and y are inputs, out is the output; the comments name the fields that each kind reads.
struct Op {
    OpKind kind;
    Columns x, y, out;
    // embed: row (index + offset) of the table, or of `matrix`, is stored or added to out.
    // linear: out = epilogue(x W^T + bias), with what adapters add.
    Table table;
    Matrix matrix;
    bool indexes_positions, adds;
    int64_t offset;
    Epilogue epilogue;
    Activation activation;  // of linear, and of the op activation
    bool is_gated;          // activation: x holds gate and up
    // norm: of groups of `group` columns. weight is [group] or, if weight_step is `group`,
    // [columns]; both may be null. route: the bias of the choice. xielu: four numbers in weight.
    NormKind norm;
    float eps;
    const float* weight;
    const float* bias;
    int64_t group, weight_step;
    // rope: `rotary_dim` columns from `offset` on of each head of `group` columns.
    const float* cosines;  // [positions, rotary_dim / 2]
    const float* sines;
    int64_t rotary_dim;
    RotaryStyle rotary_style;
    int64_t num_sections;     // axes of `Step::rope_positions`; 0: the op reads `Step::positions`
    const int32_t* sections;  // [num_sections], pairs that each axis turns
    // add: x += factor * y. scale, cap, clip: the factor or limit. linear, activation: alpha and
    // the limit of Activation::swiglu_clipped.
    float alpha, factor;
    // keep: the layer. write_kv: the KV entry. restrict_rows: the first layer that is kept later.
    int64_t index;
    // attend: x are the queries; the step sets cache, batch, queries, out and workspace.
    Attention attention;
    // restrict_rows: the buffers whose rows are read afterwards.
    const int32_t* live;
    int64_t num_live;
    bool is_final;
    // route: of the logits x; writes the expert ids, which are int32, and their weights.
    Router router;
    // experts: of x; the step sets rows, ids, weights, out and scratch. `adds` to out.
    ExpertProduct experts;
    Columns ids, weights;
    // linear: y is x as operands of A. `a` is null without adapters.
    Adapters adapters;
    // head_linear: out[h] = x[h] W[h]^T with the matrix of the first head; y: its operands.
    // head_copy: `group` columns of each head of x. The columns of a head begin a stride after
    // those of the one before.
    int64_t num_heads, x_stride, out_stride;
    // norm, encode: of int8 operands, that of the matrices which multiply them.
    ColumnOrder order;
    // convolve, recur: of the step's sequences; the step sets the columns and the batch, except for
    // its `start`. recur: x are the queries, y the keys.
    Convolution convolution;
    Recurrence recurrence;
    Columns value, decay, beta;
};

// Consecutive ops that run chunk by chunk, or one op over all rows.
struct Stage {
    int64_t first, count;
    bool by_chunks;
};

struct Program {
    int64_t num_buffers, num_ops, num_stages;
    const Buffer* buffers;
    const Op* ops;
    const Stage* stages;
    int32_t hidden;  // the buffer that a step returns

    // The logits of hidden states: an optional projection, then the LM head.
    Matrix embed_out;  // data is null without it
    Matrix lm_head;
    float logit_scale, logit_cap;  // logits become cap * tanh(scale * logit / cap); 0: no cap
};

struct Step {
    Batch batch;
    KVCache cache;
    const int32_t* token_ids;       // [num_tokens]
    const int32_t* positions;       // [num_tokens]
    const int32_t* rope_positions;  // [axes, num_tokens], of ropes with sections; null: `positions`
    const int32_t* embedding_rows;  // [num_tokens], rows of `embeddings`; -1: of the table; or null
    const float* embeddings;        // [rows, columns of the token embedding]
    int64_t num_outputs;
    const int32_t* output_rows;  // [num_outputs], ascending: tokens whose hidden state is returned
    float* hidden;               // [num_outputs, columns of the hidden buffer]
    int64_t num_kept;
    const int32_t* kept_layers;  // [num_kept], layers whose outputs are returned; not the last
    float* kept;                 // [num_tokens, num_kept * hidden size]
    void* scratch;               // `forward_scratch` bytes, aligned to 64
    KVCopies copies;             // in each layer, after the step's own tokens were written
    const float* columns;        // [num_tokens, columns of the op input], or null
    const int32_t* adapter_ids;  // [num_tokens], negative: none; null: no token has an adapter
    StateRows states;            // of programs with convolutions or recurrences
};

// Logits of hidden states that a step returned.
struct Logits {
    int64_t count;
    const float* hidden;  // [count, hidden size]
    float* logits;        // [count, vocab_size], or null
    int32_t* token_ids;   // [count], the most likely tokens (the lowest id of several), or null
    float* logprobs;      // [count], log probabilities of token_ids, or null
    TokenMasks masks;     // of the rows; not with logprobs
    void* scratch;        // `logits_scratch` bytes, aligned to 64
};
