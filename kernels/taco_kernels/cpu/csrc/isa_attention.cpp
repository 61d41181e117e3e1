#include "attention.h"
#include "isa_table.h"
#include "write_kv.h"

void TACO_ISA::add_attention(Kernels& table) {
    table.write_kv = write_kv;
    table.attention_workspace = attention_workspace;
    table.attend = attend;
}
