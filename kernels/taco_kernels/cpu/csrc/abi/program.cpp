// C functions of programs.

#include <new>

#include "abi/cpu_abi.h"
#include "attention/prefix_groups.h"
#include "dispatch/kernel_table.h"
#include "program/program_args.h"
#include "runtime/thread_pool.h"

int64_t taco_program_forward_bytes(TacoPool* pool, const Program* program, const Step* step) {
    try {
        return pool->kernels.forward_bytes(*program, *step, pool->threads.num_ready_threads());
    } catch (const std::bad_alloc&) {
        return TOO_MANY_BYTES;
    }
}

void taco_program_forward(TacoPool* pool, const Program* program, const Step* step) {
    const auto groups = find_prefix_groups(step->batch, step->cache.block_size);
    Step grouped = *step;
    grouped.batch.prefix_groups = groups.empty() ? nullptr : groups.data();
    pool->threads.run([&](Thread& thread) { pool->kernels.forward(thread, *program, grouped); });
}

int64_t taco_program_logits_bytes(const TacoPool* pool, const Program* program,
                                  const Logits* logits) {
    return pool->kernels.logits_bytes(*program, *logits);
}

void taco_program_logits(TacoPool* pool, const Program* program, const Logits* logits) {
    pool->threads.run([&](Thread& thread) { pool->kernels.logits(thread, *program, *logits); });
}

void taco_program_decode(TacoPool* pool, const Program* program, const Step* step,
                         const Logits* logits) {
    taco_program_forward(pool, program, step);
    taco_program_logits(pool, program, logits);
}
