// The table of the instruction set that is being compiled for.
//
// What a set offers is compiled in units, isa_<part>.cpp, each once a set: a change of one part
// compiles that part alone. A unit puts its entries into the table.
#pragma once

#include "dispatch/kernel_table.h"

namespace TACO_ISA {

const Kernels& kernels();

void add_matmul(Kernels& table);
void add_attention(Kernels& table);
void add_elementwise(Kernels& table);
void add_sampling(Kernels& table);
void add_decoder(Kernels& table);

}  // namespace TACO_ISA
