// C functions of codes that checkpoints store.

#include "abi/native_abi.h"
#include "codes/float8_nans.h"
#include "codes/transpose_nibbles.h"

void taco_transpose_nibbles(const uint32_t* words, int64_t n, int64_t k, const int32_t* row,
                            uint32_t* out) {
    transpose_nibbles(words, n, k, row, out);
}

bool taco_has_e4m3_nans(const uint8_t* floats, int64_t count) {
    return has_e4m3_nans(floats, count);
}
