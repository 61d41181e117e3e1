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

// Loads scales and offsets of groups, for numbers that are divided by their FACTOR: powers of two
// change no bit.
template <class Numbers, GroupOffset OFFSET>
class GroupsOf {
public:
    explicit GroupsOf(const CodePart& part)
        : scale_type_(part.scale_type),
          step_type_(part.step_type),
          stride_(part.group_bytes()),
          offset_(PANEL * scale_bytes(part.scale_type)),
          steps_(part.unit_bytes()) {}

    // `header`: of the chunk; `group`: of the chunk.
    __attribute__((always_inline)) GroupScales load(const char* header, int64_t group) const {
        const bool has_steps = step_type_ != StepType::none;
        const char* at = header + group * stride_;
        const char* units = has_steps ? header : at;
        GroupScales out{load_scales(scale_type_, units), zero()};
        if constexpr (OFFSET == GroupOffset::zero) {
            out.offset = load_bf16(reinterpret_cast<const bf16*>(units + offset_));
            out.offset = mul(out.offset, set1(1 / Numbers::FACTOR));
        } else if constexpr (OFFSET == GroupOffset::minimum) {
            out.offset = load_scales(scale_type_, units + offset_);
        }
        if (has_steps) {
            out.scale = mul(out.scale, load_steps(step_type_, at + steps_));
            if constexpr (OFFSET == GroupOffset::minimum) {
                out.offset = mul(out.offset, load_steps(StepType::u8, at + steps_ + PANEL));
            }
        }
        if constexpr (Numbers::FACTOR != 1) out.scale = mul(out.scale, set1(Numbers::FACTOR));
        return out;
    }

private:
    const ScaleType scale_type_;
    const StepType step_type_;
    const int64_t stride_, offset_, steps_;
};

// Numbers that are whole.
struct WholeNumbers {
    static constexpr float FACTOR = 1;
};

// Scales and offsets of a group of whole numbers; an offset that groups do not have is zero.
inline GroupScales load_group(const CodePart& part, const char* header, int64_t group) {
    switch (part.offset) {
        case GroupOffset::zero:
            return GroupsOf<WholeNumbers, GroupOffset::zero>(part).load(header, group);
        case GroupOffset::minimum:
            return GroupsOf<WholeNumbers, GroupOffset::minimum>(part).load(header, group);
        case GroupOffset::none: break;
    }
    return GroupsOf<WholeNumbers, GroupOffset::none>(part).load(header, group);
}

}  // namespace TACO_ISA
