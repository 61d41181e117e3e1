// Which instruction sets there are, and pools that compute with one of them.

#include <new>

#include "cpu_features.h"
#include "pool.h"
#include "taco_cpu.h"

// build.py names the sets that it compiled: TACO_FOR_EACH_ISA(X) is X(avx2) X(avx512) ...
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

}  // namespace

const char* taco_source_hash() { return TACO_SOURCE_HASH; }

const char* taco_isa_name(int32_t index) {
    return index < num_tables ? tables[index]().name : nullptr;
}

const char* taco_isa_obstacle(int32_t index) { return missing_for(tables[index]().name); }

TacoPool* taco_pool_create(int32_t num_threads, const int32_t* cpus, int32_t isa_index) {
    auto* pool = new (std::nothrow) TacoPool(num_threads, cpus, tables[isa_index]());
    if (pool != nullptr && !pool->threads.is_complete()) {
        delete pool;
        return nullptr;
    }
    return pool;
}

void taco_pool_destroy(TacoPool* pool) { delete pool; }

int64_t taco_pool_bf16_operand_bytes(const TacoPool* pool) {
    return pool->kernels.bf16_operand_bytes;
}
int64_t taco_pool_int8_operand_bytes(const TacoPool* pool) {
    return pool->kernels.int8_operand_bytes;
}
