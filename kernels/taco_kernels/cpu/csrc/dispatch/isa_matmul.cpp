#include "dispatch/isa_table.h"
#include "matmul/encode.h"
#include "matmul/greedy_argmax.h"
#include "matmul/multiply.h"
#include "matmul/multiply_heads.h"
#include "matmul/pack.h"
#include "program/embedding.h"

void TACO_ISA::add_matmul(Kernels& table) {
    table.encode_rows = encode_rows;
    table.encode_operands = encode_operands;
    table.multiply = multiply;
    table.multiply_heads = multiply_heads;
    table.multiply_argmax = multiply_argmax;
    table.pack = pack;
    table.read_rows = read_rows;
}
