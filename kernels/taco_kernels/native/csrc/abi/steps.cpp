// C functions of decode steps.

#include "abi/native_abi.h"
#include "steps/decode_rows.h"

bool taco_begin_decode(const SlotColumns* batch, const int32_t* slots,
                       const int32_t* num_new_tokens, int64_t num_rows,
                       const int32_t* appended_slots, const int32_t* appended_blocks,
                       int64_t num_appended, DecodeRows* rows) {
    const AppendedBlocks blocks{num_appended, appended_slots, appended_blocks};
    return begin_decode(*batch, slots, num_new_tokens, num_rows, blocks, rows);
}

void taco_end_decode(const SlotColumns* batch, DecodeRows* rows) { end_decode(*batch, rows); }
