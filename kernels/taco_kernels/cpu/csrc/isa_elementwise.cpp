#include "isa_table.h"
#if __has_include("encode.h")
#include "elementwise_rows.h"
#endif

void TACO_ISA::add_elementwise([[maybe_unused]] Kernels& table) {
#if __has_include("encode.h")
    table.norm_rows = norm_rows;
    table.rotate_rows = rotate_rows;
    table.map = map;
#endif
}
