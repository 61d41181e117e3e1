// What other products take of matrices of codes. dispatch/isa_codes.cpp defines it: the kernels of
// each kind of codes take long to compile.
#pragma once

#include "isa/code_pairs.h"
#include "matmul/block.h"

namespace TACO_ISA {

// Items of a decoded pair row: as in a bf16 panel; or, where pairs are widened, both columns as
// floats, one after the other.
constexpr int64_t PAIR_ITEMS = 2 * PANEL;

// Decodes steps of a panel of a part, as many as a bf16 panel has. `steps` begins at a multiple of
// four.
void decode_steps(const CodePart& part, const char* panel, Range steps, Bf16Operand* out);

// The sums of a block of a matrix of codes, on vectors: in every bit those of sum_on_vectors of the
// bf16 matrix with the same values.
void sum_codes_on_vectors(const Block& block, float* sums);

}  // namespace TACO_ISA
