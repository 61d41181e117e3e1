// Lists the instruction sets of the library, and creates thread pools that compute with one of
// them.

#include <new>

#include "abi/cpu_abi.h"
#include "dispatch/cpu_features.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

// build.py passes the sets that it compiled: TACO_FOR_EACH_ISA(X) is X(avx2) X(avx512) ...
#define DECLARE(isa)          \
    namespace isa {           \
    const Kernels& kernels(); \
    }
TACO_FOR_EACH_ISA(DECLARE)

namespace {

#define TABLE_OF(isa) isa::kernels,
using Table = const Kernels& (*)();
constexpr Table tables[] = {TACO_FOR_EACH_ISA(TABLE_OF)};
constexpr int32_t num_tables = sizeof tables / sizeof tables[0];

// Not read from the tables: code of the instruction set itself builds its table.
#define NAME_OF(isa) #isa,
constexpr const char* names[] = {TACO_FOR_EACH_ISA(NAME_OF)};

}  // namespace

const char* taco_source_hash() { return TACO_SOURCE_HASH; }

const char* taco_isa_name(int32_t index) { return index < num_tables ? names[index] : nullptr; }

const char* taco_isa_missing_feature(int32_t index) { return missing_for(names[index]); }

TacoPool* taco_pool_create(int32_t num_threads, const int32_t* cpus, int32_t isa_index) {
    auto* pool = new (std::nothrow) TacoPool(num_threads, cpus, tables[isa_index]());
    if (pool != nullptr && pool->threads.num_threads() < num_threads) {
        delete pool;
        return nullptr;
    }
    return pool;
}

void taco_pool_destroy(TacoPool* pool) { delete pool; }

void taco_pool_forget_threads(TacoPool* pool) { pool->threads.forget_threads(); }

void taco_pool_trace(TacoPool* pool, TraceSpan* spans, int64_t capacity) {
    pool->threads.trace(spans, capacity);
}

int64_t taco_pool_bf16_operand_bytes(const TacoPool* pool) {
    return pool->kernels.bf16_operand_bytes;
}
int64_t taco_pool_int8_operand_bytes(const TacoPool* pool) {
    return pool->kernels.int8_operand_bytes;
}
int64_t taco_pool_operand_tile_rows(const TacoPool* pool) {
    return pool->kernels.operand_tile_rows;
}
