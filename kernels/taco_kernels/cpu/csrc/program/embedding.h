// Embedding lookup: rows of embedding tables, widened to float.
#pragma once

#include "isa/partial_vectors.h"
#include "matmul/codes/multiply_codes.h"
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

// Copies columns `k` to `end` - 1 of row `column` of W out of a bf16 panel whose first step is at
// column `k`.
inline void copy_panel_column(const bf16* panel, int64_t column, int64_t k, int64_t end,
                              float* out) {
    constexpr int64_t GROUP = k_group(DType::bf16);
    for (int64_t i = 0; k + i < end; ++i) {
        out[k + i] = from_bf16(panel[(i / GROUP * PANEL + column) * GROUP + i % GROUP]);
    }
}

// The same of pair rows that are widened (matmul/codes/multiply_codes.h).
inline void copy_panel_column(const float* panel, int64_t column, int64_t k, int64_t end,
                              float* out) {
    for (int64_t i = 0; k + i < end; ++i) out[k + i] = panel[i * PANEL + column];
}

// Copies a row of W out of codes for int8 operands, in the order of W's columns, rounded to bf16.
inline void copy_grouped_row(const CodePart& part, int64_t row, int64_t width, float* out) {
    const PanelGroups groups(part, row / PANEL);
    const int64_t columns = part.group_columns();
    alignas(64) float lanes[PANEL];
    for (int64_t k = 0, group = 0; k < width; k += columns, ++group) {
        const GroupScales scales = groups.scales(group);
        const int64_t count = std::min(columns, width - k);
        for (int64_t column = 0; column < count; ++column) {
            store(lanes, groups.values(group, column, scales));
            out[k + column] = from_bf16(to_bf16(lanes[row % PANEL]));
        }
    }
}

// Copies a row of W out of a packed matrix of f32 or of bf16 operands (matrix.h), whose numbers lie
// a panel row apart, or out of a matrix of codes.
inline void copy_packed_row(const Matrix& matrix, int64_t row, int64_t width, float* out) {
    const int64_t column = row % PANEL;
    if (matrix.type == DType::f32) {
        const float* panel = static_cast<const float*>(matrix.panel(row / PANEL));
        for (int64_t k = 0; k < width; ++k) out[k] = panel[k * PANEL + column];
        return;
    }
    if (!matrix.parts) {
        const bf16* panel = static_cast<const bf16*>(matrix.panel(row / PANEL));
        return copy_panel_column(panel, column, 0, width, out);
    }
    const CodePart& part = matrix.part_of(row / PANEL);
    if (is_grouped_int8(matrix)) return copy_grouped_row(part, row, width, out);
    const char* panel = part.panel(row / PANEL);
    constexpr int64_t STEPS = 64, COLUMNS = STEPS * k_group(DType::bf16);
    alignas(64) Bf16Operand decoded[STEPS * PAIR_ITEMS];
    for (int64_t k = 0; k < width; k += COLUMNS) {
        const int64_t step = k / 2;
        const int64_t end = std::min(step + STEPS, padded_k(DType::bf16, matrix.k) / 2);
        decode_steps(part, panel, {step, end}, decoded);
        copy_panel_column(decoded, column, k, std::min(k + COLUMNS, width), out);
    }
}

// Copies rows of W, of `matrix.k` floats each.
inline void read_rows(Thread& thread, const Matrix& matrix, int64_t count, const int64_t* rows,
                      float* out) {
    thread.share(count, 1, [&](int64_t i, int64_t) {
        copy_packed_row(matrix, rows[i], matrix.k, out + i * matrix.k);
    });
}

inline void add_table_row(const Table& table, int64_t row, int64_t width, float* out) {
    for_table_row(table, row, width, [out](int64_t i, F32 v, int64_t count) {
        store_lanes(out + i, add(load_lanes(out + i, count), v), count);
    });
}

}  // namespace TACO_ISA
