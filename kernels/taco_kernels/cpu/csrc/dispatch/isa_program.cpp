#include "dispatch/isa_table.h"
#include "program/run_logits.h"
#include "program/run_step.h"

void TACO_ISA::add_program(Kernels& table) {
    table.forward_bytes = forward_bytes;
    table.forward = forward;
    table.logits_bytes = logits_bytes;
    table.logits = compute_logits;
}
