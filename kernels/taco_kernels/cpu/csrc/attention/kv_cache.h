// The paged KV cache: its memory layout, and the arguments of attention.
#pragma once

#include "runtime/types.h"

// A block holds `block_size` tokens of all layers, contiguously, so that it can be copied to
// another tier as one piece:
//
//     block[layer]: keys [kv_head][key panel], values [kv_head][value panel], and for int8
//                   key scales [kv_head][block_size], value scales [kv_head][block_size], float
//     key panel   16 tokens: [padded head_dim / g][token 0..15][dim % g]: the layout of a Matrix
//                 panel with k = head_dim, so that scores are a product with the queries
//     value panel 16 dims: [block_size / g][dim 0..15][token % g]: a Matrix panel with k = tokens
//
// with g = 1 for float32 and 2 for bf16 and int8 (int8 is widened to bf16 pairs before use).
// head_dim is padded to a multiple of 16 with zeros; block_size is a multiple of 16.
//
// The first token of a panel of sixteen zeroes the values and scales of the other fifteen when it
// is written, so that a product with probability 0 never reads stale memory.
struct KVCache {
    DType type;
    char* data;
    int64_t num_blocks, block_size, num_layers, num_kv_heads, head_dim;

    int64_t padded_dim() const { return round_up(head_dim, PANEL); }
    int64_t group() const { return type == DType::f32 ? 1 : 2; }
    // Bytes of the keys (or values) of one head of one layer of one block.
    int64_t head_bytes() const { return block_size * padded_dim() * item_bytes(type); }
    int64_t scale_bytes() const {
        return type == DType::i8 ? num_kv_heads * block_size * int64_t(sizeof(float)) : 0;
    }
    int64_t layer_bytes() const { return 2 * num_kv_heads * head_bytes() + 2 * scale_bytes(); }
    int64_t block_bytes() const { return num_layers * layer_bytes(); }

    char* keys(int64_t block, int64_t layer, int64_t head) const {
        return data + block * block_bytes() + layer * layer_bytes() + head * head_bytes();
    }
    char* values(int64_t block, int64_t layer, int64_t head) const {
        return keys(block, layer, num_kv_heads + head);
    }
    float* key_scales(int64_t block, int64_t layer, int64_t head) const {
        char* scales = keys(block, layer, 2 * num_kv_heads);
        return reinterpret_cast<float*>(scales) + head * block_size;
    }
    float* value_scales(int64_t block, int64_t layer, int64_t head) const {
        return key_scales(block, layer, num_kv_heads + head);
    }
};

// The sequences of a step, as AttentionMetadata in the worker.
struct Batch {
    int64_t num_tokens, num_seqs;
    const int32_t* query_start;   // [num_seqs + 1], first token of each sequence in the step
    const int32_t* seq_lens;      // [num_seqs], tokens in the KV after this step
    const int32_t* block_tables;  // [num_seqs, block_table_stride]
    int64_t block_table_stride;
};

// Copies of tokens' keys and values between slots (block * block_size + offset). No target is also
// a source.
struct KVCopies {
    int64_t count;
    const int64_t* sources;  // [count]
    const int64_t* targets;  // [count]
};

// Attention of a step's queries over one layer of the cache, which already holds the step's own
// keys and values.
struct Attention {
    KVCache cache;
    Batch batch;
    int64_t layer;
    int64_t num_heads;
    float scale;                // factor on query-key products
    int64_t sliding_window;     // tokens that a token sees, itself included; 0 is all
    float soft_cap;             // scores become cap * tanh(score / cap); 0: no cap
    const float* alibi_slopes;  // [num_heads], or null
    const float* queries;       // [num_tokens, query_stride]: head after head
    int64_t query_stride;
    void* out;  // [num_tokens, out_stride]
    int64_t out_stride;
    bool out_is_operand;  // out holds Bf16Operands, else floats
    void* workspace;      // `attention_workspace` bytes, aligned to 64, shared by the threads
};
