// Computes logits of hidden states, or only the most likely tokens.
#pragma once

#include "decoder/decoder_step.h"

namespace TACO_ISA {

inline int64_t logits_bytes(const Decoder& decoder, const Logits& logits) {
    Arena counter(nullptr);
    LogitsScratch(counter, OPERAND_BYTES, decoder, logits);
    return counter.used();
}

inline void compute_logits(Thread& thread, const Decoder& decoder, const Logits& logits) {
    Arena arena(logits.scratch);
    const LogitsScratch scratch(arena, OPERAND_BYTES, decoder, logits);
    for_chunks(logits.count, [&](int64_t begin, int64_t count) {
        const float* hidden = logits.hidden + begin * decoder.hidden_size;
        int64_t stride = decoder.hidden_size;
        if (decoder.embed_out.data) {
            const Rows rows = encode(thread, decoder.embed_out, count, hidden, stride,
                                     scratch.operands, scratch.scales);
            kernels().multiply(thread,
                               Product{rows, decoder.embed_out, Epilogue::store, Activation::none,
                                       scratch.embedded, scratch.embedded_stride, false});
            hidden = scratch.embedded;
            stride = scratch.embedded_stride;
        }
        const Rows rows = encode(thread, decoder.lm_head, count, hidden, stride, scratch.operands,
                                 scratch.scales);
        if (logits.logits) {
            float* out = logits.logits + begin * decoder.vocab_size;
            kernels().multiply(thread, Product{rows, decoder.lm_head, Epilogue::store,
                                               Activation::none, out, decoder.vocab_size, false});
        }
        if (logits.token_ids) {
            float* logprobs = logits.logprobs ? logits.logprobs + begin : nullptr;
            kernels().multiply_argmax(
                thread, rows, decoder.lm_head,
                Argmax{scratch.ranks, logits.token_ids + begin, scratch.sums, logprobs});
        }
    });
}

}  // namespace TACO_ISA
