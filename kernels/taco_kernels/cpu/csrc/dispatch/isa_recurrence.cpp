#include "dispatch/isa_table.h"
#include "recurrence/convolve.h"
#include "recurrence/recur.h"

void TACO_ISA::add_recurrence(Kernels& table) {
    table.convolve = convolve;
    table.recur = recur;
}
