#include "dispatch/isa_table.h"
#include "experts/multiply_adapters.h"
#include "experts/multiply_experts.h"
#include "experts/route.h"

void TACO_ISA::add_experts(Kernels& table) {
    table.route = route;
    table.experts_scratch_bytes = experts_scratch_bytes;
    table.multiply_experts = multiply_experts;
    table.adapters_scratch_bytes = adapters_scratch_bytes;
    table.multiply_adapters = multiply_adapters;
}
