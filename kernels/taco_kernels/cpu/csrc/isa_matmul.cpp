#include "argmax.h"
#include "encode.h"
#include "isa_table.h"
#include "matmul.h"
#include "pack.h"

void TACO_ISA::add_matmul(Kernels& table) {
    table.encode_rows = encode_rows;
    table.multiply = multiply;
    table.multiply_argmax = multiply_argmax;
    table.pack = pack;
}
