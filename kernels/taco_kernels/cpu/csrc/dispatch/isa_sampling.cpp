#include "dispatch/isa_table.h"
#include "sampling/logprobs.h"
#include "sampling/mask_logits.h"
#include "sampling/sample.h"

void TACO_ISA::add_sampling(Kernels& table) {
    table.sample_tokens = sample_tokens;
    table.mask_logits = mask_logits;
    table.gather_logprobs = gather_logprobs;
}
