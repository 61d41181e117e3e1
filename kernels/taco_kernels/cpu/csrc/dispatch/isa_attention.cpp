#include "attention/attention.h"
#include "attention/write_kv.h"
#include "dispatch/isa_table.h"

void TACO_ISA::add_attention(Kernels& table) {
    table.write_kv = write_kv;
    table.attention_workspace = attention_workspace;
    table.attend = attend;
}
