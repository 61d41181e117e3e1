// C functions of the decoder.

#include "abi/cpu_abi.h"
#include "decoder/decoder_args.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

int64_t taco_decoder_forward_bytes(const TacoPool* pool, const Decoder* decoder, const Step* step) {
    return pool->kernels.forward_bytes(*decoder, *step, pool->threads.num_threads());
}

void taco_decoder_forward(TacoPool* pool, const Decoder* decoder, const Step* step) {
    pool->threads.run([&](Thread& thread) { pool->kernels.forward(thread, *decoder, *step); });
}

int64_t taco_decoder_logits_bytes(const TacoPool* pool, const Decoder* decoder,
                                  const Logits* logits) {
    return pool->kernels.logits_bytes(*decoder, *logits);
}

void taco_decoder_logits(TacoPool* pool, const Decoder* decoder, const Logits* logits) {
    pool->threads.run([&](Thread& thread) { pool->kernels.logits(thread, *decoder, *logits); });
}
