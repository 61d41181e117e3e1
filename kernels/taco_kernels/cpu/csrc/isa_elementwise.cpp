#include "elementwise_rows.h"
#include "isa_table.h"

void TACO_ISA::add_elementwise(Kernels& table) {
#if __has_include("encode.h")
    table.norm_rows = norm_rows;
#endif
    table.rotate_rows = rotate_rows;
    table.map = map;
}
