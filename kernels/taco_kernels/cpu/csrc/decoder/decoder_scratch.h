// Scratch memory of a step, allocated from one piece.
#pragma once

#include <algorithm>
#include <atomic>

#include "decoder/decoder_args.h"
#include "runtime/arena.h"
#include "sampling/sampling_args.h"

// Bytes of an operand of an instruction set.
struct OperandBytes {
    int64_t bf16, int8;

    int64_t of(DType type) const {
        return type == DType::f32 ? 4 : type == DType::bf16 ? bf16 : int8;
    }
    // Bytes of a row of operands for a matrix.
    int64_t row(const Matrix& matrix) const {
        return matrix.data ? padded_k(matrix.type, matrix.k) * of(matrix.type) : 0;
    }
    // Bytes of a row that a kernel writes for a matrix: operands where it can write them, else
    // floats.
    int64_t written_row(const Matrix& matrix) const {
        return padded_k(matrix.type, matrix.k) * (matrix.type == DType::bf16 ? bf16 : 4);
    }
};

// Rows whose operands and inner MLP values are held at a time. With this many rows per read of the
// weights, arithmetic takes longer than memory.
constexpr int64_t CHUNK_ROWS = 1024;

// Calls body(begin, count) for chunks of about equal size.
template <class Body>
void for_chunks(int64_t rows, Body body) {
    if (rows == 0) return;
    const int64_t size = round_up(ceil_div(rows, ceil_div(rows, CHUNK_ROWS)), 32);
    for (int64_t begin = 0; begin < rows; begin += size) {
        body(begin, std::min(size, rows - begin));
    }
}
inline int64_t chunk_rows(int64_t rows) { return std::min(rows, CHUNK_ROWS); }

// Floats per row of a shared array: rows begin at cache lines.
constexpr int64_t row_stride(int64_t floats) { return round_up(floats, 16); }

struct ForwardScratch {
    float* hidden;         // [num_tokens, hidden_stride], the residual stream
    float* qkv;            // [num_tokens, qkv_stride]; narrow embeddings before the first layer
    void* attended;        // [num_tokens] rows as the out product takes them, or floats
    void* inner;           // [a chunk] rows as the down product takes them, or floats
    void* operands;        // [a chunk] rows of whatever product runs
    float* scales;         // [a chunk], of int8 operands
    float* queries;        // [num_outputs, query_stride], of the rows that the last layer ends with
    int32_t* query_start;  // of a batch in which each of these rows is a separate sequence
    int32_t* seq_lens;
    int32_t* block_tables;
    void* attention;  // `attention_bytes`, the attention kernel's own
    int64_t hidden_stride, qkv_stride, query_stride;

    ForwardScratch(Arena& arena, OperandBytes bytes, const Decoder& decoder, const Step& step,
                   int64_t attention_bytes) {
        const int64_t tokens = step.batch.num_tokens, chunk = chunk_rows(tokens);
        const DecoderLayer& layer = decoder.layers[0];
        hidden_stride = row_stride(decoder.hidden_size);
        qkv_stride = row_stride(std::max(decoder.qkv_size(), decoder.embedding_size));
        query_stride = row_stride(decoder.query_size());
        hidden = arena.take<float>(tokens * hidden_stride);
        qkv = arena.take<float>(tokens * qkv_stride);
        attended = arena.take_bytes(tokens * bytes.written_row(layer.out));
        inner = arena.take_bytes(chunk * bytes.written_row(layer.down));
        operands = arena.take_bytes(
            chunk * std::max({bytes.row(layer.qkv), bytes.row(layer.out), bytes.row(layer.up),
                              bytes.row(layer.down), bytes.row(decoder.embed_in)}));
        scales = arena.take<float>(chunk);
        const int64_t outputs = step.num_outputs;
        queries = arena.take<float>(outputs * query_stride);
        query_start = arena.take<int32_t>(outputs + 1);
        seq_lens = arena.take<int32_t>(outputs);
        block_tables = arena.take<int32_t>(outputs * step.batch.block_table_stride);
        attention = arena.take_bytes(attention_bytes);
    }
};

struct LogitsScratch {
    float* embedded;  // [a chunk, embedded_stride], hidden states of the embeddings' width
    void* operands;   // [a chunk]
    float* scales;    // [a chunk]
    std::atomic<uint64_t>* ranks;  // [a chunk], of the most likely tokens
    PartialSum* sums;  // [a chunk, num_partial_sums] where log probabilities are wanted, else none
    int64_t embedded_stride;

    LogitsScratch(Arena& arena, OperandBytes bytes, const Decoder& decoder, const Logits& logits) {
        const int64_t chunk = chunk_rows(logits.count);
        embedded_stride = row_stride(decoder.embedding_size);
        embedded = arena.take<float>(decoder.embed_out.data ? chunk * embedded_stride : 0);
        operands = arena.take_bytes(
            chunk * std::max(bytes.row(decoder.lm_head), bytes.row(decoder.embed_out)));
        scales = arena.take<float>(chunk);
        ranks = arena.take<std::atomic<uint64_t>>(chunk);
        sums = arena.take<PartialSum>(logits.logprobs ? chunk * num_partial_sums(decoder.vocab_size)
                                                      : 0);
    }
};
