#include "dispatch/isa_table.h"
#include "sampling/logprobs.h"
#include "sampling/sample.h"

void TACO_ISA::add_sampling(Kernels& table) {
    table.sample_tokens = sample_tokens;
    table.gather_logprobs = gather_logprobs;
}
