// Sixteen dims of a key panel as a value panel, for entries whose values are
// parts of their keys.
#pragma once

#include "matmul/panel_dot.h"

namespace TACO_ISA {

// [dim 0..15][token 0..15] to [token][dim].
inline void transpose_block(float* out, const float* in) {
#ifdef __AVX512F__
    transpose_floats(out, in);
#else
    for (int64_t d = 0; d < PANEL; ++d) {
        for (int64_t t = 0; t < PANEL; ++t) out[t * PANEL + d] = in[d * PANEL + t];
    }
#endif
}

// [dim / 2][token 0..15][dim % 2] to [token / 2][dim 0..15][token % 2].
inline void transpose_block(bf16* out, const bf16* in) {
#ifdef __AVX512BF16__
    transpose_pairs(out, in);
#else
    for (int64_t d = 0; d < PANEL; ++d) {
        for (int64_t t = 0; t < PANEL; ++t) {
            out[(t / 2 * PANEL + d) * 2 + t % 2] = in[(d / 2 * PANEL + t) * 2 + d % 2];
        }
    }
#endif
}

// Likewise, widened to operands.
template <class Source>
inline void transpose_panel(OperandOf<Source>* out, const Source* in) {
    if constexpr (std::is_same_v<Source, OperandOf<Source>>) {
        transpose_block(out, in);
    } else {
        OperandOf<Source> wide[PANEL * PANEL];
        for (int64_t i = 0; i < PANEL * PANEL; i += 2 * PANEL) {
            store_pairs(wide + i, load_pairs(in + i));
        }
        transpose_block(out, wide);
    }
}

}  // namespace TACO_ISA
