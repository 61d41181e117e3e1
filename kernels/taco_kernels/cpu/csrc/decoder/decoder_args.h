// A decoder-only transformer: its weights, and the arguments of one step.
//
// The structs are part of the C ABI: taco_kernels/cpu/decoder.py declares them again.
#pragma once

#include "attention/kv_cache.h"
#include "matmul/matrix.h"

// Rows of an embedding table as the checkpoint stores them; read in place, never copied as a whole.
struct Table {
    const void* data;  // null where a model has no such table
    int64_t stride;    // items from one row to the next
    TableType type;
};

struct NormWeights {
    const float* weight;  // null where a model has no such norm
    const float* bias;    // null for RMSNorm
};

struct DecoderLayer {
    NormWeights attn_norm, mlp_norm;
    Matrix qkv, out;
    Matrix up;  // gate and up of a gated MLP
    Matrix down;
    int64_t sliding_window;  // tokens that a token sees, itself included; 0 is all
};

struct Decoder {
    int64_t vocab_size, hidden_size, embedding_size, intermediate_size;
    int64_t num_layers, num_heads, num_kv_heads, head_dim;
    NormKind norm;
    float norm_eps;
    Activation activation;
    float attention_scale;
    bool pre_norm;  // norms come before attention and MLP, else after the residual sum
    bool gated_mlp;

    Table embeddings;  // [vocab_size, embedding_size]; data is null: rows of lm_head
    Table positions;   // [any, hidden_size], learned; position p is row p + offset
    int64_t position_offset;
    const float* cosines;  // [positions, head_dim / 2], rotary; null with learned positions
    const float* sines;
    Matrix embed_in;   // data is null unless embeddings are narrower than the layers
    Matrix embed_out;  // the inverse projection, before the logits
    NormWeights final_norm;
    Matrix lm_head;
    const DecoderLayer* layers;

    int64_t query_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }
    int64_t qkv_size() const { return query_size() + 2 * kv_size(); }
};

struct Step {
    Batch batch;
    KVCache cache;
    const int32_t* token_ids;  // [num_tokens]
    const int32_t* positions;  // [num_tokens]
    int64_t num_outputs;
    const int32_t* output_rows;  // [num_outputs], ascending: tokens whose hidden state is returned
    float* hidden;               // [num_outputs, hidden_size], after the final norm
    int64_t num_kept;
    const int32_t* kept_layers;  // [num_kept], layers whose outputs are returned; not the last
    float* kept;                 // [num_tokens, num_kept * hidden_size]
    void* scratch;               // `forward_scratch` bytes, aligned to 64
    KVCopies copies;             // in each layer, after the step's own tokens were written
};

// Logits of hidden states that a step returned.
struct Logits {
    int64_t count;
    const float* hidden;  // [count, hidden_size]
    float* logits;        // [count, vocab_size], or null
    int32_t* token_ids;   // [count], the most likely tokens (the lowest id of several), or null
    float* logprobs;      // [count], log probabilities of token_ids, or null
    void* scratch;        // `logits_scratch` bytes, aligned to 64
};
