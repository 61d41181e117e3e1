// The order of codes in a block of 64 bytes, which depends on the operands that decode them. This
// is host code, the same for all instruction sets.
#pragma once

#include "matmul/codes/code_args.h"

// A word for each row of a panel: eight nibbles or four bytes of adjacent columns, the first in the
// lowest bits.
struct RowWords {
    uint32_t of[PANEL];
};

// Eight codes of 4 bits, of one a byte. Assumes little endian, like all that reads panels.
inline uint32_t join_nibbles(uint64_t bytes) {
    bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ff;
    bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffff;
    return uint32_t(bytes | bytes >> 16);
}

// Permutes the bits of row words to a block.
class CodeOrder {
public:
    // `widens_pairs`: as WIDENS_PAIRS of the instruction set (isa/code_pairs.h).
    CodeOrder(CodeKind kind, DType operands, bool widens_pairs)
        : is_nibble_(kind == CodeKind::nibble || high_bits(kind)),
          is_int8_(operands == DType::i8),
          widens_pairs_(widens_pairs) {}

    RowWords apply(const RowWords& in) const {
        if (is_int8_) return is_nibble_ ? nibbles_of_int8(in) : in;
        if (is_nibble_) return widens_pairs_ ? in : nibbles_of_pairs(in);
        return widens_pairs_ ? bytes_of_columns(in) : bytes_of_pairs(in);
    }

private:
    // Byte i of a row has the columns i and i + 4 (codes/grouped_int8.h).
    static RowWords nibbles_of_int8(const RowWords& in) {
        RowWords out;
        for (int i = 0; i < PANEL; ++i) {
            out.of[i] = spread(in.of[i] & 0xffff) | spread(in.of[i] >> 16) << 4;
        }
        return out;
    }

    // Four nibbles as the low halves of four bytes.
    static uint32_t spread(uint32_t nibbles) {
        nibbles = (nibbles | nibbles << 8) & 0x00ff00ff;
        return (nibbles | nibbles << 4) & 0x0f0f0f0f;
    }

    // Vector i of sixteen codes takes bits 4i to 4i + 3 of all words. Vectors 2t and 2t + 1 have
    // both columns of a pair, of eight rows each.
    static RowWords nibbles_of_pairs(const RowWords& in) {
        RowWords out;
        for (int lane = 0; lane < PANEL; ++lane) {
            const int shift = lane % 2 * 4;  // to an odd column
            out.of[lane] = (in.of[lane / 2] >> shift & 0x0f0f0f0f) |
                           (in.of[8 + lane / 2] >> shift & 0x0f0f0f0f) << 4;
        }
        return out;
    }

    // Vectors of sixteen bytes: two columns of all rows, then the other two.
    static RowWords bytes_of_pairs(const RowWords& in) {
        RowWords out;
        for (int i = 0; i < PANEL; ++i) {
            const int row = i % 8 * 2, shift = i / 8 * 16;
            out.of[i] = (in.of[row] >> shift & 0xffff) | (in.of[row + 1] >> shift) << 16;
        }
        return out;
    }

    // Vectors of sixteen bytes: a column of all rows.
    static RowWords bytes_of_columns(const RowWords& in) {
        RowWords out{};
        for (int i = 0; i < PANEL; ++i) {
            for (int byte = 0; byte < 4; ++byte) {
                out.of[i] |= (in.of[i % 4 * 4 + byte] >> i / 4 * 8 & 0xff) << 8 * byte;
            }
        }
        return out;
    }

    bool is_nibble_, is_int8_, widens_pairs_;
};
