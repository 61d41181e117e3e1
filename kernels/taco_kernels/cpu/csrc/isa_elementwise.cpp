#include "elementwise_rows.h"
#include "isa_table.h"

void TACO_ISA::add_elementwise(Kernels& table) {
    table.norm_rows = norm_rows;
    table.rotate_rows = rotate_rows;
    table.map = map;
}
