#include "dispatch/isa_table.h"
#include "sampling/choose.h"
#include "sampling/logprobs.h"

void TACO_ISA::add_sampling(Kernels& table) {
    table.choose_tokens = choose_tokens;
    table.gather_logprobs = gather_logprobs;
}
