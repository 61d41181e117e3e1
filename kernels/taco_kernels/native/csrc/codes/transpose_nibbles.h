// Transposes matrices of 4-bit codes, eight in a word of 32 bits.
#pragma once

#include <cstdint>

// Swaps the bits of `low` above `shift` with those of `high` below, in each field of the mask.
inline void swap_fields(uint32_t& low, uint32_t& high, int shift, uint32_t mask) {
    const uint32_t both = ((low >> shift) ^ high) & mask;
    high ^= both;
    low ^= both << shift;
}

// Nibble j of word i becomes nibble i of word j.
inline void transpose_eight(uint32_t (&words)[8]) {
    for (int i = 0; i < 4; ++i) swap_fields(words[i], words[i + 4], 16, 0x0000ffff);
    for (int i = 0; i < 8; i += i % 4 ? 3 : 1) swap_fields(words[i], words[i + 2], 8, 0x00ff00ff);
    for (int i = 0; i < 8; i += 2) swap_fields(words[i], words[i + 1], 4, 0x0f0f0f0f);
}

// From words of eight rows of W, row[i] of them in nibble i, to words of eight columns.
//
//     words  [k, n / 8]
//     out    [k / 8, n]: the first column in the lowest bits
inline void transpose_nibbles(const uint32_t* words, int64_t n, int64_t k, const int32_t* row,
                              uint32_t* out) {
    const int64_t stride = n / 8;
    for (int64_t column = 0; column < k; column += 8, words += 8 * stride) {
        for (int64_t word = 0; word < stride; ++word, out += 8) {
            uint32_t eight[8];
            for (int i = 0; i < 8; ++i) eight[i] = words[i * stride + word];
            transpose_eight(eight);
            for (int i = 0; i < 8; ++i) out[row[i]] = eight[i];
        }
    }
}
