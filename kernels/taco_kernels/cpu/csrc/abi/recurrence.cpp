// C functions of convolutions and linear recurrences.

#include "abi/cpu_abi.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

void taco_convolve(TacoPool* pool, const Convolution* convolution) {
    pool->threads.run([&](Thread& thread) { pool->kernels.convolve(thread, *convolution); });
}

void taco_recur(TacoPool* pool, const Recurrence* recurrence) {
    pool->threads.run([&](Thread& thread) { pool->kernels.recur(thread, *recurrence); });
}
