// Passes over panels of codes with int8 activations on vectors: their rows and panels.
#pragma once

#include "matmul/multiply_vectors.h"

namespace TACO_ISA {

enum class CodePass {
    STREAM,  // of a few rows that wait for memory: see stream_panels
    LONG,    // of as many rows as registers have sums for: each decodes the codes
    SHORT,   // registers keep the sums of earlier groups too, and many passes share decoded codes
};

constexpr int LONG_PASS_ROWS = PASS_ROWS > 12 ? 12 : PASS_ROWS;  // decoding takes registers too
// Where each group's sums are added to sums in memory, groups of 32 columns take a fifth longer on
// Zen 5.
constexpr int SHORT_PASS_ROWS = 6, SHORT_PASS_PANELS = 2;
constexpr bool HAS_SHORT_PASSES = 2 * SHORT_PASS_ROWS * SHORT_PASS_PANELS <= MAX_ACCUMULATORS;
// A sum of a group waits for scales too, so two panels are faster than one.
constexpr int STREAM_PASS_ROWS = 2, STREAM_PASS_PANELS = 2;

// Whether three passes or more use the codes of some rows: to decode them once then takes less time
// than in each pass.
constexpr bool shares_codes(int64_t rows) { return rows > 2 * LONG_PASS_ROWS; }

inline CodePass code_pass(const Block& block) {
    const int64_t rows = block.rows.size();
    if (rows <= STREAM_PASS_ROWS && !block.is_cached) return CodePass::STREAM;
    return HAS_SHORT_PASSES && shares_codes(rows) ? CodePass::SHORT : CodePass::LONG;
}

// Panels of a pass, a power of two. `rows`: of one of them, or of all that share passes.
constexpr int code_pass_panels(CodePass pass, int64_t rows) {
    switch (pass) {
        case CodePass::STREAM: return STREAM_PASS_PANELS;
        case CodePass::SHORT: return SHORT_PASS_PANELS;
        case CodePass::LONG: break;
    }
    return pass_panels(rows, LONG_PASS_ROWS);
}

// As for_row_blocks, for the passes that share `rows`.
template <class Body>
inline void for_code_passes(int64_t rows, Body body) {
    if constexpr (HAS_SHORT_PASSES) {
        if (shares_codes(rows)) return for_row_blocks<SHORT_PASS_ROWS>(rows, body);
    }
    for_row_blocks<LONG_PASS_ROWS>(rows, body);
}

}  // namespace TACO_ISA
