// Masks of the tokens that rows may sample, one bit a token. The struct is part of the C ABI.
#pragma once

#include "runtime/range.h"
#include "runtime/types.h"

constexpr int64_t MASK_WORD_TOKENS = 32;

struct TokenMasks {
    const uint32_t* bits;   // [any, num_words]; bit i % 32 of word i / 32 is token i
    int64_t num_words;      // of a mask
    const int32_t* of_row;  // [rows], the row's mask, or -1: all tokens; null: no row has a mask

    // The mask of a row, or null.
    const uint32_t* mask(int64_t row) const {
        return of_row && of_row[row] >= 0 ? bits + of_row[row] * num_words : nullptr;
    }
    // The masks of the rows from `row` on.
    TokenMasks from(int64_t row) const {
        return {bits, num_words, of_row ? of_row + row : nullptr};
    }
};

namespace TACO_ISA {

// The bits of a panel's tokens, the lowest sixteen.
inline uint32_t panel_bits(const uint32_t* mask, int64_t panel) {
    static_assert(MASK_WORD_TOKENS == 2 * PANEL);
    return mask[panel / 2] >> panel % 2 * PANEL & 0xffff;
}

// Whether one of the rows may sample a token of the panels, which begin at an even one.
inline bool allows_any(const TokenMasks& masks, Range rows, Range panels) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        const uint32_t* mask = masks.mask(row);
        if (!mask) return true;
        for (int64_t word = panels.begin / 2; word < ceil_div(panels.end, 2); ++word) {
            if (mask[word]) return true;
        }
    }
    return false;
}

}  // namespace TACO_ISA
