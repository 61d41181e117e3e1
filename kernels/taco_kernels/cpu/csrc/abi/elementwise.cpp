// C functions of norms, rotary embedding and activations.

#include "abi/cpu_abi.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

void taco_norm_rows(TacoPool* pool, const NormRows* norm) {
    pool->threads.run([&](Thread& thread) { pool->kernels.norm_rows(thread, *norm); });
}

void taco_rotate_rows(TacoPool* pool, const RotaryRows* rotary) {
    pool->threads.run([&](Thread& thread) { pool->kernels.rotate_rows(thread, *rotary); });
}

void taco_activate_rows(TacoPool* pool, const ActivatedRows* rows) {
    pool->threads.run([&](Thread& thread) { pool->kernels.activate_rows(thread, *rows); });
}

void taco_apply_row_op(TacoPool* pool, const RowOp* op) {
    pool->threads.run([&](Thread& thread) { pool->kernels.apply_row_op(thread, *op); });
}

void taco_map(TacoPool* pool, const Mapped* mapped) {
    pool->threads.run([&](Thread& thread) { pool->kernels.map(thread, *mapped); });
}
