#include "isa_table.h"
#if __has_include("matmul.h")
#include "matmul.h"
#include "encode.h"
#endif

void TACO_ISA::add_matmul([[maybe_unused]] Kernels& table) {
#if __has_include("matmul.h")
    table.encode_rows = encode_rows;
    table.multiply = multiply;
#endif
}
