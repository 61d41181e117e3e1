// A transpose for sets without instructions for it. vec_avx2.h and vec_emulated.h include this.
#pragma once

namespace TACO_ISA {

// [8 pairs of rows][16 columns][2] to [8 pairs of columns][16 rows][2].
inline void transpose_pairs(bf16* out, const bf16* in) {
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 16; ++column) {
            out[(column / 2 * 16 + row) * 2 + column % 2] =
                in[(row / 2 * 16 + column) * 2 + row % 2];
        }
    }
}

}  // namespace TACO_ISA
