// C functions of sampling.

#include "abi/cpu_abi.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"
#include "sampling/penalize.h"
#include "sampling/sampling_scratch.h"

int64_t taco_sampling_scratch(const LogitRows* logits, int32_t num_threads) {
    return sampling_scratch(*logits, num_threads);
}

void taco_sample_tokens(TacoPool* pool, const SamplingMetadata* metadata) {
    pool->threads.run([&](Thread& thread) { pool->kernels.sample_tokens(thread, *metadata); });
}

void taco_penalize(TacoPool* pool, const Penalties* penalties) {
    pool->threads.run([&](Thread& thread) { TACO_ISA::penalize(thread, *penalties); });
}

void taco_mask_logits(TacoPool* pool, const LogitRows* logits, const TokenMasks* masks) {
    pool->threads.run([&](Thread& thread) { pool->kernels.mask_logits(thread, *logits, *masks); });
}

void taco_gather_logprobs(TacoPool* pool, const Logprobs* wanted) {
    pool->threads.run([&](Thread& thread) { pool->kernels.gather_logprobs(thread, *wanted); });
}
