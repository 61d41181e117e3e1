#include "isa_table.h"
#if __has_include("encode.h")
#include "decoder_logits.h"
#include "decoder_step.h"
#endif

void TACO_ISA::add_decoder([[maybe_unused]] Kernels& table) {
#if __has_include("encode.h")
    table.forward_bytes = forward_bytes;
    table.forward = forward;
    table.logits_bytes = logits_bytes;
    table.logits = compute_logits;
#endif
}
