// C functions of attention.

#include "abi/cpu_abi.h"
#include "attention/copy_kv.h"
#include "attention/prefix_groups.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

void taco_write_kv(TacoPool* pool, const KVCache* cache, const Batch* batch, int64_t entry,
                   const KeyValueRows* rows) {
    pool->threads.run(
        [&](Thread& thread) { pool->kernels.write_kv(thread, *cache, *batch, entry, *rows); });
}

void taco_append_kv(TacoPool* pool, const KVCache* cache, const KVCopies* copies) {
    pool->threads.run([&](Thread& thread) { TACO_ISA::append_kv(thread, *cache, *copies); });
}

int64_t taco_attention_workspace(TacoPool* pool, const Attention* attention) {
    return pool->kernels.attention_workspace(*attention, pool->threads.num_ready_threads());
}

void taco_attend(TacoPool* pool, const Attention* attention) {
    const auto groups = find_prefix_groups(attention->batch, attention->cache.block_size);
    Attention grouped = *attention;
    grouped.batch.prefix_groups = groups.empty() ? nullptr : groups.data();
    pool->threads.run([&](Thread& thread) { pool->kernels.attend(thread, grouped); });
}
