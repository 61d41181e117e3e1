#include "dispatch/isa_table.h"

#include "matmul/operand_layout.h"

#define TO_STRING(x) #x
#define NAME_OF(isa) TO_STRING(isa)

namespace TACO_ISA {

const Kernels& kernels() {
    static const Kernels table = [] {
        Kernels made = {};
        made.name = NAME_OF(TACO_ISA);
        made.bf16_operand_bytes = int64_t(sizeof(Bf16Operand));
        made.int8_operand_bytes = int64_t(sizeof(Int8Operand));
        made.operand_tile_rows = OPERAND_TILE_ROWS;
        add_matmul(made);
        add_experts(made);
        add_attention(made);
        add_elementwise(made);
        add_sampling(made);
        add_program(made);
        add_recurrence(made);
        return made;
    }();
    return table;
}

}  // namespace TACO_ISA
