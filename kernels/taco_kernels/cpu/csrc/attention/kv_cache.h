// The paged KV cache: its memory layout, and the arguments of attention.
#pragma once

#include "runtime/types.h"

// Element type of a cache. The values are part of the C ABI.
enum class KVType : int32_t { f32 = 0, bf16 = 1, i8 = 2, e4m3 = 3, e5m2 = 4 };

constexpr int64_t item_bytes(KVType type) {
    return type == KVType::f32 ? 4 : type == KVType::bf16 ? 2 : 1;
}

// Tokens of a span. Scores are relative to the best score of their span, and spans are summed in
// order. Spans lie at absolute positions, so that a row's sums do not depend on the thread or on
// the length of the context.
constexpr int64_t SPAN = 256;

// A block holds `block_size` tokens of all entries, contiguously, so that it can be copied to
// another tier as one piece. An entry is the KV of one layer, or of several layers that share it:
//
//     block[entry]: keys [head][key panel], values [head][value panel], and if tokens have scales
//                   key scales [head][block_size], value scales [head][block_size], float
//     key panel   16 tokens: [padded key_dim / g][token 0..15][dim % g]: the layout of a Matrix
//                 panel with k = key_dim, so that scores are a product with the queries
//     value panel 16 dims: [block_size / g][dim 0..15][token % g]: a Matrix panel with k = tokens
//
// with g = 1 for float32, else 2 (8-bit numbers are widened to bf16 pairs before use). 8-bit
// numbers are multiples of a scale: the entry's, or one of each token and head.
//
// Dims are padded to a multiple of 16 with zeros; block_size is a multiple of 16. A latent entry
// stores keys and their scales only: a value is the first value_dim numbers of its key.
//
// The first token of a panel of sixteen zeroes the values and scales of the other fifteen when it
// is written, so that a product with probability 0 never reads stale memory. In a latent entry it
// zeroes their keys. For the same reason a value that is not finite is stored as zeros, with a key
// of NaNs, so that the rows that see it become NaN. In a latent entry the rest of the key is NaN,
// or its scale; without both (value_dim = key_dim) NaN is stored as it is.
struct KVEntry {
    int64_t num_heads, key_dim, value_dim;
    int64_t offset;  // bytes from the beginning of a block
    bool is_latent;
    // Of 8-bit numbers. 0: each token and head has its own.
    float key_scale, value_scale;
};

// One entry in the blocks of a cache.
struct EntryKV {
    KVType type;
    char* data;  // in block 0
    int64_t block_bytes, block_size, num_heads, key_dim, value_dim;
    bool is_latent;
    float key_scale, value_scale;  // of KVEntry

    int64_t padded_key_dim() const { return round_up(key_dim, PANEL); }
    int64_t padded_value_dim() const { return round_up(value_dim, PANEL); }
    int64_t group() const { return type == KVType::f32 ? 1 : 2; }
    bool has_token_scales() const { return item_bytes(type) == 1 && key_scale == 0; }
    // Of all keys, or values, of the entry.
    float key_factor() const { return key_scale > 0 ? key_scale : 1; }
    float value_factor() const { return value_scale > 0 ? value_scale : 1; }

    char* keys(int64_t block, int64_t head) const {
        return data + block * block_bytes + head * key_bytes();
    }
    // Not of a latent entry.
    char* values(int64_t block, int64_t head) const {
        return keys(block, num_heads) + head * value_bytes();
    }
    float* key_scales(int64_t block, int64_t head) const {
        return reinterpret_cast<float*>(values(block, num_heads)) + head * block_size;
    }
    float* value_scales(int64_t block, int64_t head) const {
        return key_scales(block, is_latent ? head : num_heads + head);
    }

private:
    // Bytes of one head of one block.
    int64_t key_bytes() const { return block_size * padded_key_dim() * item_bytes(type); }
    int64_t value_bytes() const {
        return is_latent ? 0 : block_size * padded_value_dim() * item_bytes(type);
    }
};

struct KVCache {
    KVType type;
    char* data;
    int64_t num_blocks, block_size, block_bytes, num_entries;
    const KVEntry* entries;  // [num_entries]

    EntryKV entry(int64_t index) const {
        const KVEntry& entry = entries[index];
        return {type,
                data + entry.offset,
                block_bytes,
                block_size,
                entry.num_heads,
                entry.key_dim,
                entry.value_dim,
                entry.is_latent,
                entry.key_scale,
                entry.value_scale};
    }
};

// Adjacent sequences of a step that share the first spans of their contexts (prefix_groups.h).
struct PrefixGroup {
    int32_t first, count, spans;
};

// The sequences of a step, as AttentionMetadata in the worker.
struct Batch {
    int64_t num_tokens, num_seqs;
    const int32_t* query_start;   // [num_seqs + 1], first token of each sequence in the step
    const int32_t* seq_lens;      // [num_seqs], tokens in the KV after this step
    const int32_t* block_tables;  // [num_seqs, block_table_stride]
    int64_t block_table_stride;
    const PrefixGroup* prefix_groups = nullptr;  // [num_seqs]; the kernels set it
};

// Copies of tokens' keys and values between slots (block * block_size + offset). No target is also
// a source.
struct KVCopies {
    int64_t count;
    const int64_t* sources;  // [count]
    const int64_t* targets;  // [count]
};

// Which blocks of tokens a token sees: the nearest `num_local_blocks`, and for head h each block k
// with (k + head_offset + h * head_step + 1) % stride == 0.
struct BlockSparse {
    int64_t block_size;  // in tokens, a multiple of PANEL; 0: a token sees all blocks
    int64_t num_local_blocks, stride, head_step, head_offset;
};

// Attention of a step's queries over one entry of the cache, which already holds the step's own
// keys and values.
struct Attention {
    KVCache cache;
    Batch batch;
    int64_t entry;
    int64_t num_heads;
    float scale;         // factor on query-key products
    int64_t window;      // tokens that a token sees, itself included; 0 is all
    float cap;           // scores become cap * tanh(score / cap); 0: no cap
    const float* alibi;  // [num_heads], slopes, or null
    const float* sinks;  // [num_heads], logits that join a row's sum without a value, or null
    int64_t log_n;       // scores grow by max(1, log(position + 1) / log(log_n)); 0: they do not
    BlockSparse block_sparse;
    const float* queries;  // [num_tokens, query_stride]: heads of key_dim numbers
    int64_t query_stride;
    void* out;  // [num_tokens, out_stride]: heads of value_dim numbers
    int64_t out_stride;
    bool out_is_operand;  // out holds Bf16Operands, else floats
    void* workspace;      // `attention_workspace` bytes, aligned to 64, shared by the threads
};
