// Rows of lookup tables, widened to float.
#pragma once

#include "decoder.h"

namespace TACO_ISA {

// Exact for every half, subnormal ones, infinities and NaN included.
inline float from_half(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = uint32_t(half & 0x7fff) << 13;
    // The exponent's bias grows from 15 to 127: a product with 2^112 moves it and renormalizes.
    float value;
    std::memcpy(&value, &magnitude, sizeof value);
    value *= 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;
    bits |= sign;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Calls take(column, value) for the columns of a row.
template <class Take>
void for_table_row(const Table& table, int64_t row, int64_t width, Take take) {
    const int64_t begin = row * table.stride;
    switch (table.type) {
        case TableType::f32: {
            const float* values = static_cast<const float*>(table.data) + begin;
            for (int64_t i = 0; i < width; ++i) take(i, values[i]);
            break;
        }
        case TableType::bf16: {
            const bf16* values = static_cast<const bf16*>(table.data) + begin;
            for (int64_t i = 0; i < width; ++i) take(i, from_bf16(values[i]));
            break;
        }
        case TableType::f16: {
            const uint16_t* values = static_cast<const uint16_t*>(table.data) + begin;
            for (int64_t i = 0; i < width; ++i) take(i, from_half(values[i]));
            break;
        }
    }
}

inline void copy_table_row(const Table& table, int64_t row, int64_t width, float* out) {
    for_table_row(table, row, width, [out](int64_t i, float value) { out[i] = value; });
}

inline void add_table_row(const Table& table, int64_t row, int64_t width, float* out) {
    for_table_row(table, row, width, [out](int64_t i, float value) { out[i] += value; });
}

}  // namespace TACO_ISA
