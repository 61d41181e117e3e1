// Where the operands of rows are in memory: a property of the instruction set.
//
// With tiles, operands of bf16 and int8 matrices are in tile order, in pieces of 64 bytes of a row:
//
//     data[row / 16][k / piece][row % 16][k % piece]     a piece has 32 bf16 or 64 int8
//
// so that a tile is one piece of memory, and sixteen rows are one stream. The last rows have memory
// for sixteen; what the missing ones hold changes no sum of another row. Other instruction sets,
// and f32 everywhere, have one row after the other.
#pragma once

#include "isa/vec.h"

namespace TACO_ISA {

// Rows of a tile: the memory of some rows is a multiple of as many rows.
#ifdef TACO_HAS_TILES
constexpr int64_t OPERAND_TILE_ROWS = 16;
#else
constexpr int64_t OPERAND_TILE_ROWS = 1;
#endif
constexpr int64_t PIECE_BYTES = 64;

// Bytes of one operand of a matrix of `type`.
constexpr int64_t operand_bytes(DType type) {
    return type == DType::f32    ? int64_t(sizeof(float))
           : type == DType::bf16 ? int64_t(sizeof(Bf16Operand))
                                 : int64_t(sizeof(Int8Operand));
}

// Bytes from the first of some rows to operand `k` of row `row`; a row has `stride` operands. The
// sum of the offsets of (row, 0) and (0, k).
constexpr int64_t operand_offset(DType type, int64_t row, int64_t stride, int64_t k) {
    const int64_t bytes = operand_bytes(type);
    if (OPERAND_TILE_ROWS == 1 || type == DType::f32) return (row * stride + k) * bytes;
    const int64_t first = row / OPERAND_TILE_ROWS * OPERAND_TILE_ROWS * stride * bytes;
    const int64_t piece = k * bytes / PIECE_BYTES;
    return first + (piece * OPERAND_TILE_ROWS + row % OPERAND_TILE_ROWS) * PIECE_BYTES +
           k * bytes % PIECE_BYTES;
}

// Rows of memory that `count` rows of operands take.
constexpr int64_t operand_rows(DType type, int64_t count) {
    return type == DType::f32 ? count : round_up(count, OPERAND_TILE_ROWS);
}

// Operand `k` of the row whose first operand is `row`: of a bf16 or an int8 matrix.
template <class Operand>
inline Operand* operand_at(Operand* row, int64_t k) {
    if constexpr (OPERAND_TILE_ROWS == 1) return row + k;
    constexpr int64_t piece = PIECE_BYTES / int64_t(sizeof(Operand));
    return row + k / piece * piece * OPERAND_TILE_ROWS + k % piece;
}

// Stores `count` <= 16 operands of a bf16 matrix from number `k` of a row on.
inline void store_bf16_operands(Bf16Operand* row, int64_t k, F32 values, int64_t count) {
    if (count == LANES && k % LANES == 0) return store_bf16_operand(operand_at(row, k), values);
    Bf16Operand operands[LANES];
    store_bf16_operand(operands, values);
    for (int64_t i = 0; i < count; ++i) *operand_at(row, k + i) = operands[i];
}

// Copies a row of `stride` operands to another place in rows of the same shape.
inline void copy_operand_row(DType type, int64_t stride, const void* from, int64_t from_row,
                             void* to, int64_t to_row) {
    const int64_t whole = stride * operand_bytes(type);
    const bool is_adjacent = OPERAND_TILE_ROWS == 1 || type == DType::f32;
    const int64_t piece = is_adjacent ? whole : PIECE_BYTES;
    for (int64_t at = 0; at < whole; at += piece) {
        const int64_t k = at / operand_bytes(type);
        std::memcpy(static_cast<char*>(to) + operand_offset(type, to_row, stride, k),
                    static_cast<const char*>(from) + operand_offset(type, from_row, stride, k),
                    size_t(piece));
    }
}

}  // namespace TACO_ISA
