// Sixteen dims of a key panel as a value panel, for entries whose values are
// parts of their keys.
#pragma once

#include "matmul/panel_dot.h"

namespace TACO_ISA {

// [dim 0..15][token 0..15] to [token][dim].
inline void transpose_block(float* out, const float* in) { transpose_floats(out, in); }

// [dim / 2][token 0..15][dim % 2] to [token / 2][dim 0..15][token % 2].
inline void transpose_block(bf16* out, const bf16* in) { transpose_pairs(out, in); }

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
