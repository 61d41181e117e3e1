// Scales and offsets of the groups of a panel of codes (code_args.h).
#pragma once

#include "isa/code_pairs.h"
#include "matmul/codes/code_args.h"

namespace TACO_ISA {

// Scales of sixteen rows, and zeros or minima.
struct GroupScales {
    F32 scale, offset;
};

__attribute__((always_inline)) inline F32 load_scales(ScaleType type, const char* p) {
    switch (type) {
        case ScaleType::f32: return load(reinterpret_cast<const float*>(p));
        case ScaleType::bf16: return load_bf16(reinterpret_cast<const bf16*>(p));
        case ScaleType::f16: return load_f16(reinterpret_cast<const uint16_t*>(p));
        case ScaleType::e8m0: break;
    }
    // 2^(e - 127); of e = 0 it is a denormal number.
    const I32 exponents = load_u8(reinterpret_cast<const uint8_t*>(p));
    return max(as_float(shift_left<23>(exponents)), set1(0x1p-127f));
}

// The steps of sixteen rows as numbers.
__attribute__((always_inline)) inline F32 load_steps(StepType type, const char* p) {
    if (type == StepType::i8) return load_i8(reinterpret_cast<const int8_t*>(p));
    const I32 bytes = load_u8(reinterpret_cast<const uint8_t*>(p));
    if (type != StepType::e4m3) return to_float(bytes);
    // Exponent and mantissa where a float has them, with the exponent's bias grown from 7 to 127.
    // An exponent of 0 then reads as (1 + m / 8) * 2^-7, but is m / 8 * 2^-6.
    const I32 bits = shift_left<20>(bit_and(bytes, set1_i32(0x7f)));
    const F32 normal = as_float(add(bits, set1_i32(120 << 23)));
    const F32 small = fma(normal, set1(2), set1(-0x1p-6f));
    const F32 size = select_less(normal, set1(0x1p-6f), small, normal);
    return as_float(bit_or(as_bits(size), shift_left<24>(bit_and(bytes, set1_i32(0x80)))));
}

// Of numbers of columns: 64-bit divisions take longer.
inline int64_t quotient(int64_t a, int64_t b) { return uint32_t(a) / uint32_t(b); }

}  // namespace TACO_ISA
