// Computes logits of hidden states, or only the most likely tokens.
#pragma once

#include "matmul/greedy_argmax.h"
#include "program/run_rows.h"

namespace TACO_ISA {

inline int64_t logits_bytes(const Program& program, const Logits& logits) {
    Arena counter(nullptr);
    LogitsScratch(counter, program, logits);
    return counter.used();
}

// Encodes `count` float rows as operands of `matrix`. Floats need no encoding.
inline Rows encode(Thread& thread, const Matrix& matrix, int64_t count, const float* rows,
                   int64_t stride, void* operands, RowScale* scales) {
    if (matrix.type == DType::f32) return {count, rows, stride, nullptr};
    kernels().encode_rows(thread, matrix.type, count, matrix.k, rows, stride, operands, scales,
                          matrix.order);
    return {count, operands, padded_k(matrix.type, matrix.k), scales};
}

inline void transform_logits(Thread& thread, const LogitTransform& transform, int64_t count,
                             int64_t vocab_size, float* logits) {
    if (transform.scale == 1 && transform.cap == 0) return;
    share_rows(thread, count, [&](int64_t row) {
        float* values = logits + row * vocab_size;
        for (int64_t i = 0; i < vocab_size; i += LANES) {
            const int64_t lanes = std::min<int64_t>(vocab_size - i, LANES);
            store_lanes(values + i, transformed(load_lanes(values + i, lanes), transform), lanes);
        }
    });
}

inline void compute_logits(Thread& thread, const Program& program, const Logits& logits) {
    const Span span(thread.log(), SpanKind::logits, 0);
    Arena arena(logits.scratch);
    const LogitsScratch scratch(arena, program, logits);
    const Matrix &lm_head = program.lm_head, &embed_out = program.embed_out;
    const LogitTransform transform{program.logit_scale, program.logit_cap};
    const int64_t hidden_size = program.buffers[program.hidden].columns;
    for_chunks(logits.count, [&](int64_t begin, int64_t count) {
        const float* hidden = logits.hidden + begin * hidden_size;
        int64_t stride = hidden_size;
        if (embed_out.data) {
            const Rows rows =
                encode(thread, embed_out, count, hidden, stride, scratch.operands, scratch.scales);
            kernels().multiply(thread, Product{rows, embed_out, Epilogue::store, Activation::none,
                                               scratch.embedded, scratch.embedded_stride, false});
            hidden = scratch.embedded;
            stride = scratch.embedded_stride;
        }
        const Rows rows =
            encode(thread, lm_head, count, hidden, stride, scratch.operands, scratch.scales);
        const TokenMasks masks = logits.masks.from(begin);
        if (logits.logits) {
            float* out = logits.logits + begin * lm_head.n;
            kernels().multiply(thread, Product{rows, lm_head, Epilogue::store, Activation::none,
                                               out, lm_head.n, false, 0, 0, 1, masks});
            transform_logits(thread, transform, count, lm_head.n, out);
            if (masks.of_row) {
                kernels().mask_logits(thread, LogitRows{out, count, lm_head.n, lm_head.n}, masks);
            }
        }
        if (logits.token_ids) {
            float* logprobs = logits.logprobs ? logits.logprobs + begin : nullptr;
            kernels().multiply_argmax(thread, rows, lm_head,
                                      Argmax{scratch.ranks, logits.token_ids + begin, scratch.sums,
                                             logprobs, transform, masks});
        }
    });
}

}  // namespace TACO_ISA
