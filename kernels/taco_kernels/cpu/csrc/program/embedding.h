// Embedding lookup: rows of embedding tables, widened to float.
#pragma once

#include "isa/partial_vectors.h"
#include "program/program_args.h"

namespace TACO_ISA {

// Calls take(first column, F32, number of columns) for sixteen columns of `values` at a time; the
// last vector may hold fewer, followed by zeros.
template <class Item, class Load, class Take>
inline void for_row_lanes(const Item* values, int64_t width, Load widen, Take take) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) take(i, widen(values + i), int64_t(LANES));
    if (const int64_t rest = width - i) {
        Item last[LANES] = {};
        std::copy_n(values + i, rest, last);
        take(i, widen(last), rest);
    }
}

template <class Take>
inline void for_table_row(const Table& table, int64_t row, int64_t width, Take take) {
    const int64_t begin = row * table.stride;
    switch (table.type) {
        case TableType::f32:
            for_row_lanes(static_cast<const float*>(table.data) + begin, width, load, take);
            break;
        case TableType::bf16:
            for_row_lanes(static_cast<const bf16*>(table.data) + begin, width, load_bf16, take);
            break;
        case TableType::f16:
            for_row_lanes(static_cast<const uint16_t*>(table.data) + begin, width, load_f16, take);
            break;
    }
}

inline void copy_table_row(const Table& table, int64_t row, int64_t width, float* out) {
    for_table_row(table, row, width,
                  [out](int64_t i, F32 v, int64_t count) { store_lanes(out + i, v, count); });
}

// Copies a row of W out of a packed matrix of f32 or bf16 (matrix.h), whose numbers lie a panel row
// apart.
inline void copy_packed_row(const Matrix& matrix, int64_t row, int64_t width, float* out) {
    const int64_t column = row % PANEL;
    if (matrix.type == DType::f32) {
        const float* panel = static_cast<const float*>(matrix.panel(row / PANEL));
        for (int64_t k = 0; k < width; ++k) out[k] = panel[k * PANEL + column];
        return;
    }
    constexpr int64_t GROUP = k_group(DType::bf16);
    const bf16* panel = static_cast<const bf16*>(matrix.panel(row / PANEL));
    for (int64_t k = 0; k < width; ++k) {
        out[k] = from_bf16(panel[(k / GROUP * PANEL + column) * GROUP + k % GROUP]);
    }
}

inline void add_table_row(const Table& table, int64_t row, int64_t width, float* out) {
    for_table_row(table, row, width, [out](int64_t i, F32 v, int64_t count) {
        store_lanes(out + i, add(load_lanes(out + i, count), v), count);
    });
}

}  // namespace TACO_ISA
