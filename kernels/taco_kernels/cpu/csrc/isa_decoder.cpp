#include "decoder_logits.h"
#include "decoder_step.h"
#include "isa_table.h"

void TACO_ISA::add_decoder(Kernels& table) {
    table.forward_bytes = forward_bytes;
    table.forward = forward;
    table.logits_bytes = logits_bytes;
    table.logits = compute_logits;
}
