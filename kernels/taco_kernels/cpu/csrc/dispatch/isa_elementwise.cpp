#include "dispatch/isa_table.h"
#include "elementwise/elementwise.h"

void TACO_ISA::add_elementwise(Kernels& table) {
    table.norm_rows = norm_rows;
    table.rotate_rows = rotate_rows;
    table.map = map;
    table.activate_rows = activate_rows;
    table.apply_row_op = apply_row_op;
}
