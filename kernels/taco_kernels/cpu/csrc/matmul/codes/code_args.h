// Weights as small codes with scales: how a matrix's panels hold them, and the arguments of
// packing. The structs are part of the C ABI.
#pragma once

#include "runtime/types.h"

// How the bits of a code give a number.
enum class CodeKind : int32_t {
    none = 0,    // no codes: the panels of a bf16 matrix (matrix.h)
    nibble = 1,  // 4 bits, an index of `table`
    int8 = 2,
    e4m3 = 3,  // the 8-bit float (OCP FP8)
    int5 = 4,  // 5 bits, from 0 to 31; `zero` is subtracted
    int6 = 5,  // 6 bits, from 0 to 63, likewise
};

// High bits of codes that blocks keep apart from their low halves; 0: they keep none apart.
constexpr int high_bits(CodeKind kind) {
    return kind == CodeKind::int5 ? 1 : kind == CodeKind::int6 ? 2 : 0;
}

enum class ScaleType : int32_t { f32 = 0, bf16 = 1, f16 = 2, e8m0 = 3 };

// What besides a scale a group of columns of a row has.
enum class GroupOffset : int32_t { none = 0, zero = 1, minimum = 2 };

// How a group's scale is a number of units.
enum class StepType : int32_t { none = 0, u8 = 1, i8 = 2, e4m3 = 3 };

constexpr int64_t scale_bytes(ScaleType type) {
    return type == ScaleType::f32 ? 4 : type == ScaleType::e8m0 ? 1 : 2;
}

// Adjacent or alternate panels of sixteen rows of W whose codes are alike:
//
//     value = (number - zero) * scale                or number * scale - minimum
//
// in float32, rounded once to bf16 where the matrix multiplies bf16 operands. A panel is a stream:
//
//     panel  = chunk after chunk, each of `chunk` columns of W; the last has what is left
//     chunk  = header of each of its groups, codes
//     header = scale[16], then zero[16] (bf16) or minimum[16] (as the scales)
//              With steps, these are units of the chunk's groups, and each group has step[16],
//              then minimum's step[16] (u8): scale = unit * step, minimum likewise.
//     codes  = blocks of 64 bytes: 16 rows of W at 8 (nibble) or 4 columns; the last is padded.
//              A block of int5 (int6) has 320 (192) bytes and 32 (16) columns: 64 bytes with their
//              high bits, then the low halves of their codes as blocks of nibbles.
//
// A chunk is a group of columns, whose size is a multiple of 8; or those groups that share units;
// or all columns, which then have any groups. The order of codes in a block depends on the
// operands: codes/decode_pairs.h, codes/grouped_int8.h.
struct CodePart {
    CodeKind kind;
    ScaleType scale_type;
    StepType step_type;
    GroupOffset offset;
    int32_t zero;                                 // of all codes; `table` has it subtracted
    int64_t first_panel, panel_step, num_panels;  // of the matrix; each, or each second one
    int64_t panel_bytes;
    int64_t k;
    int64_t chunk;
    int64_t num_groups;     // of a chunk
    const char* data;       // of the first panel; they are adjacent
    const float* table;     // [16] of nibbles
    const int32_t* groups;  // of each column, [k padded to whole blocks]; null: they are in order

    int64_t block_columns() const {
        if (const int bits = high_bits(kind)) return 32 / bits;
        return kind == CodeKind::nibble ? 8 : 4;
    }
    int64_t offset_bytes() const {
        return offset == GroupOffset::none   ? 0
               : offset == GroupOffset::zero ? 2
                                             : scale_bytes(scale_type);
    }
    bool has_steps() const { return step_type != StepType::none; }
    // Bytes of the scales and offsets of sixteen rows, or of their units.
    int64_t scales_bytes() const { return PANEL * (scale_bytes(scale_type) + offset_bytes()); }
    int64_t unit_bytes() const { return has_steps() ? scales_bytes() : 0; }
    int64_t group_bytes() const {
        if (!has_steps()) return scales_bytes();
        return PANEL * (offset == GroupOffset::none ? 1 : 2);
    }
    int64_t header_bytes() const { return unit_bytes() + num_groups * group_bytes(); }
    // Columns of a group, unless they have any order.
    int64_t group_columns() const { return num_groups == 1 ? chunk : chunk / num_groups; }
    // Bytes of a chunk's codes before the block of `column`. Without divisions: they take long.
    int64_t code_bytes(int64_t column) const {
        switch (kind) {
            case CodeKind::nibble: return (column >> 3) * 64;
            case CodeKind::int5: return (column >> 5) * 320;
            case CodeKind::int6: return (column >> 4) * 192;
            default: return (column >> 2) * 64;
        }
    }
    int64_t chunk_bytes() const { return header_bytes() + code_bytes(chunk); }
    bool has_panel(int64_t panel) const {
        const int64_t index = panel - first_panel;
        return index >= 0 && index < num_panels * panel_step && !(index & (panel_step - 1));
    }
    // A panel of the matrix that the part has.
    const char* panel(int64_t panel) const {
        const int64_t index = panel - first_panel;
        return data + (panel_step == 1 ? index : index / 2) * panel_bytes;
    }
};

// Packs the codes of rows of W. Other rows of the part stay unchanged.
struct CodePacking {
    CodePart part;
    DType operands;               // of the matrix: bf16 or i8
    int64_t first;                // row of the part that takes the first of them
    int64_t count;                // rows
    const uint8_t* codes;         // [count, k]
    int64_t stride;               // bytes from one row of codes to the next
    const int32_t* columns;       // [k], the column at each place; null: they are in order
    const void* scales;           // [count, groups of a row, or units], of the part's scale type
    const void* offsets;          // likewise, as the part keeps them; or null
    const uint8_t* steps;         // [count, groups of a row], or null
    const uint8_t* offset_steps;  // likewise
};
