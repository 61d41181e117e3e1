// Builds the kernel table of the instruction set that is being compiled for.
//
// The kernels of a set are compiled in units, isa_<subject>.cpp, once per set: a change of one
// subject recompiles that subject alone. Each unit adds its entries to the table.
#pragma once

#include "dispatch/kernel_table.h"

namespace TACO_ISA {

const Kernels& kernels();

void add_matmul(Kernels& table);
void add_experts(Kernels& table);
void add_attention(Kernels& table);
void add_elementwise(Kernels& table);
void add_sampling(Kernels& table);
void add_program(Kernels& table);
void add_recurrence(Kernels& table);

}  // namespace TACO_ISA
