// C functions of a mixture of experts, and of adapters.

#include "abi/cpu_abi.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

void taco_route(TacoPool* pool, const Routing* routing) {
    pool->threads.run([&](Thread& thread) { pool->kernels.route(thread, *routing); });
}

int64_t taco_experts_scratch_bytes(const TacoPool* pool, const ExpertProduct* product) {
    return pool->kernels.experts_scratch_bytes(*product);
}

void taco_multiply_experts(TacoPool* pool, const ExpertProduct* product) {
    pool->threads.run([&](Thread& thread) { pool->kernels.multiply_experts(thread, *product); });
}

int64_t taco_adapters_scratch_bytes(const TacoPool* pool, const AdapterProduct* product) {
    return pool->kernels.adapters_scratch_bytes(*product);
}

void taco_multiply_adapted(TacoPool* pool, const AdapterProduct* adapters, const Product* product) {
    pool->threads.run([&](Thread& thread) {
        Product adapted = *product;
        adapted.adapters = pool->kernels.multiply_adapters(thread, *adapters);
        pool->kernels.multiply(thread, adapted);
    });
}
