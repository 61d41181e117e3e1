// Scratch memory of a step: the buffers of a program and what ops need besides, in one piece.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "matmul/operand_layout.h"
#include "program/program_args.h"
#include "runtime/arena.h"
#include "sampling/sampling_args.h"

namespace TACO_ISA {

// Rows that a stage holds at a time. With this many rows per read of the weights, arithmetic takes
// longer than memory.
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

// The rows of a buffer. Operands of int8 matrices have a scale per row.
struct RowBuffer {
    char* data;
    int64_t stride;  // bytes of a row
    RowScale* scales;

    // Of floats; of operands only the first row of a tile (run_rows.h has the others).
    char* row(int64_t index) const { return data + index * stride; }
    float* floats(int64_t index) const { return reinterpret_cast<float*>(row(index)); }
    int64_t float_stride() const { return stride / int64_t(sizeof(float)); }
};

inline int64_t row_bytes(const Buffer& buffer) {
    if (buffer.type == DType::f32) return row_stride(buffer.columns) * int64_t(sizeof(float));
    return buffer.num_groups * padded_k(buffer.type, buffer.columns) * operand_bytes(buffer.type);
}

// Most buffers of a program; taco_kernels/cpu/program.py checks it.
constexpr int64_t MAX_BUFFERS = 64;

// Whether the last attention and what follows run for the output rows alone. If most rows are
// outputs, as for log probabilities of a prompt, attention is faster over whole sequences.
inline bool restricts_early(const Step& step) {
    return 2 * step.num_outputs <= step.batch.num_tokens;
}

struct ForwardScratch {
    RowBuffer buffers[MAX_BUFFERS];
    RowBuffer restricted[MAX_BUFFERS];  // of the output rows, for buffers that are restricted
    int32_t* query_start;               // [at most outputs + 1], of the batch of output rows
    int32_t* seq_lens;
    int32_t* block_tables;
    void* workspace;  // of one kernel at a time; it comes last: its size varies

    ForwardScratch(Arena& arena, const Program& program, const Step& step,
                   int64_t workspace_bytes) {
        const int64_t tokens = step.batch.num_tokens, outputs = step.num_outputs;
        for (int64_t i = 0; i < program.num_buffers; ++i) {
            const Buffer& buffer = program.buffers[i];
            const int64_t rows = buffer.is_local ? chunk_rows(tokens) : tokens;
            buffers[i] = take(arena, buffer, rows);
            restricted[i] =
                take(arena, buffer, buffer.is_restricted && outputs < tokens ? outputs : 0);
        }
        const int64_t sequences = restricts_early(step) ? outputs : 0;
        query_start = arena.take<int32_t>(sequences + 1);
        seq_lens = arena.take<int32_t>(sequences);
        block_tables = arena.take<int32_t>(sequences * step.batch.block_table_stride);
        workspace = arena.take_bytes(workspace_bytes);
    }

private:
    static RowBuffer take(Arena& arena, const Buffer& buffer, int64_t rows) {
        const int64_t stride = row_bytes(buffer);
        char* data = static_cast<char*>(arena.take_bytes(operand_rows(buffer.type, rows) * stride));
        return {data, stride,
                arena.take<RowScale>(buffer.type == DType::i8 ? rows * buffer.num_groups : 0)};
    }
};

struct LogitsScratch {
    float* embedded;   // [a chunk, embedded_stride], hidden states of the embeddings' width
    void* operands;    // [a chunk]
    RowScale* scales;  // [a chunk]
    std::atomic<uint64_t>* ranks;  // [a chunk], of the most likely tokens
    PartialSum* sums;  // [a chunk, num_partial_sums] where log probabilities are wanted, else none
    int64_t embedded_stride;

    LogitsScratch(Arena& arena, const Program& program, const Logits& logits) {
        const int64_t chunk = chunk_rows(logits.count);
        const Matrix& lm_head = program.lm_head;
        embedded_stride = row_stride(lm_head.k);
        embedded = arena.take<float>(program.embed_out.data ? chunk * embedded_stride : 0);
        operands = arena.take_bytes(
            std::max(rows_bytes(lm_head, chunk), rows_bytes(program.embed_out, chunk)));
        scales = arena.take<RowScale>(chunk);
        ranks = arena.take<std::atomic<uint64_t>>(chunk);
        sums = arena.take<PartialSum>(logits.logprobs ? chunk * num_partial_sums(lm_head.n) : 0);
    }

private:
    // Bytes of `count` rows of operands for a matrix.
    static int64_t rows_bytes(const Matrix& matrix, int64_t count) {
        if (!matrix.data) return 0;
        return operand_rows(matrix.type, count) * padded_k(matrix.type, matrix.k) *
               operand_bytes(matrix.type);
    }
};

}  // namespace TACO_ISA
