#include "decoder/decoder_logits.h"
#include "decoder/decoder_step.h"
#include "dispatch/isa_table.h"

void TACO_ISA::add_decoder(Kernels& table) {
    table.forward_bytes = forward_bytes;
    table.forward = forward;
    table.logits_bytes = logits_bytes;
    table.logits = compute_logits;
}
