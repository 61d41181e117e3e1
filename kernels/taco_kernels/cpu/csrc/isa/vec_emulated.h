// Sixteen-lane vectors in plain C++, to test kernels for instruction sets that the machine lacks.
// TACO_EMULATE_BF16 gives the operands of AVX512-BF16, TACO_EMULATE_AMX those of AMX. vec_avx2.h
// describes the names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "runtime/types.h"

namespace TACO_ISA {

constexpr int LANES = 16;
// Few, to keep compilation of unrolled kernels short.
constexpr int MAX_ACCUMULATORS = 8;

#ifdef TACO_EMULATE_BF16
using Bf16Operand = bf16;
#else
using Bf16Operand = float;
#endif
#ifdef TACO_EMULATE_AMX
using Int8Operand = int8_t;
constexpr int INT8_OFFSET = 0;
#else
using Int8Operand = uint8_t;
constexpr int INT8_OFFSET = 128;
#endif

struct F32 {
    float v[LANES];
};

struct I32 {
    int32_t v[LANES];
};

inline void keep(F32&) {}
inline void keep(I32&) {}

template <class Function>
inline F32 each(Function function) {
    F32 out;
    for (int i = 0; i < LANES; ++i) out.v[i] = function(i);
    return out;
}

inline F32 set1(float x) {
    return each([=](int) { return x; });
}
inline F32 zero() { return set1(0); }
inline F32 load(const float* p) {
    return each([=](int i) { return p[i]; });
}
inline void store(float* p, F32 a) { std::memcpy(p, a.v, sizeof a.v); }

inline F32 add(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32 sub(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32 mul(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32 div(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
// As the instruction does: the second operand where one is NaN.
inline F32 max(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 min(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 round_to_even(F32 a) {
    return each([&](int i) { return std::nearbyint(a.v[i]); });
}
inline F32 mul_pow2(F32 a, F32 n) {
    return each([&](int i) {
        const bool is_sane = n.v[i] > -1000 && n.v[i] < 1000;
        return is_sane ? std::ldexp(a.v[i], int(n.v[i])) : a.v[i];
    });
}
inline F32 limit_exponent(F32 a) { return max(set1(-126), a); }
inline F32 fraction(F32 a) {
    return each([&](int i) { return std::isinf(a.v[i]) ? 0 : a.v[i] - std::floor(a.v[i]); });
}
// As VSCALEFPS: every n is allowed.
inline F32 mul_floor_pow2(F32 a, F32 n) {
    return each([&](int i) {
        if (std::isnan(n.v[i])) return n.v[i];
        return std::ldexp(a.v[i], int(std::floor(std::clamp(n.v[i], -1000.0f, 1000.0f))));
    });
}

inline F32 sub_bits(int32_t bits, F32 a) {
    return each([&](int i) {
        uint32_t from;
        std::memcpy(&from, &a.v[i], sizeof from);
        from = uint32_t(bits) - from;
        float out;
        std::memcpy(&out, &from, sizeof out);
        return out;
    });
}

inline F32 lane_numbers() {
    return each([](int i) { return float(i); });
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return each([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline F32 select_bits(uint32_t bits, F32 x, F32 y) {
    return each([&](int i) { return bits >> i & 1 ? x.v[i] : y.v[i]; });
}
inline uint32_t less_bits(F32 a, F32 b) {
    uint32_t bits = 0;
    for (int i = 0; i < LANES; ++i) bits |= uint32_t(a.v[i] < b.v[i]) << i;
    return bits;
}

inline float reduce_add(F32 a) {
    float sum = 0;
    for (float x : a.v) sum += x;
    return sum;
}
inline float reduce_max(F32 a) { return *std::max_element(a.v, a.v + LANES); }

inline F32 load_bf16(const bf16* p) {
    return each([=](int i) { return from_bf16(p[i]); });
}
inline void store_bf16(bf16* p, F32 a) {
    for (int i = 0; i < LANES; ++i) p[i] = to_bf16(a.v[i]);
}
// Exact for every half: the exponent's bias grows from 15 to 127 by a product with 2^112.
inline float from_f16(uint16_t half) {
    uint32_t bits = uint32_t(half & 0x7fff) << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    std::memcpy(&bits, &value, sizeof bits);
    if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;
    bits |= uint32_t(half & 0x8000) << 16;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline F32 load_f16(const uint16_t* p) {
    return each([=](int i) { return from_f16(p[i]); });
}
inline F32 load_i8(const int8_t* p) {
    return each([=](int i) { return float(p[i]); });
}
inline void store_i8(int8_t* p, F32 a) {
    for (int i = 0; i < LANES; ++i) {
        p[i] = int8_t(std::clamp(std::nearbyint(a.v[i]), -128.0f, 127.0f));
    }
}

inline I32 zero_i32() { return {}; }
inline I32 load_i32(const int32_t* p) {
    I32 out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
inline void store_i32(int32_t* p, I32 a) { std::memcpy(p, a.v, sizeof a.v); }
inline I32 sub(I32 a, I32 b) {
    for (int i = 0; i < LANES; ++i) a.v[i] -= b.v[i];
    return a;
}
template <int N>
inline I32 shift_left(I32 a) {
    for (int32_t& x : a.v) x = int32_t(uint32_t(x) << N);
    return a;
}
inline F32 to_float(I32 a) {
    return each([&](int i) { return float(a.v[i]); });
}
template <class Function>
inline I32 each_i32(Function function) {
    I32 out;
    for (int i = 0; i < LANES; ++i) out.v[i] = function(i);
    return out;
}
template <int N>
inline I32 shift_right(I32 a) {
    return each_i32([&](int i) { return a.v[i] >> N; });
}
inline I32 set1_i32(int32_t x) {
    return each_i32([=](int) { return x; });
}
inline I32 add(I32 a, I32 b) {
    return each_i32([&](int i) { return a.v[i] + b.v[i]; });
}
inline I32 bit_and(I32 a, I32 b) {
    return each_i32([&](int i) { return a.v[i] & b.v[i]; });
}
inline I32 bit_or(I32 a, I32 b) {
    return each_i32([&](int i) { return a.v[i] | b.v[i]; });
}
inline F32 as_float(I32 a) {
    F32 out;
    std::memcpy(out.v, a.v, sizeof out.v);
    return out;
}
inline I32 as_bits(F32 a) {
    I32 out;
    std::memcpy(out.v, a.v, sizeof out.v);
    return out;
}
inline I32 load_u8(const uint8_t* p) {
    return each_i32([=](int i) { return int32_t(p[i]); });
}
inline F32 interleave_low(F32 a, F32 b) {
    return each([&](int i) { return i % 2 ? b.v[i / 2] : a.v[i / 2]; });
}
inline F32 interleave_high(F32 a, F32 b) {
    return each([&](int i) { return i % 2 ? b.v[8 + i / 2] : a.v[8 + i / 2]; });
}
struct Table16 {
    float v[LANES];
};
inline Table16 load_table(const float* p) {
    Table16 out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
template <int N>
inline F32 look_up(const Table16& table, I32 a) {
    return each([&](int i) { return table.v[uint32_t(a.v[i]) >> (4 * N) & 15]; });
}
inline void store_bf16(bf16* p, F32 low, F32 high) {
    store_bf16(p, low);
    store_bf16(p + LANES, high);
}

struct PairRow {
    F32 even, odd;
};
inline PairRow load_pairs(const bf16* row) {
    return {each([=](int i) { return from_bf16(row[2 * i]); }),
            each([=](int i) { return from_bf16(row[2 * i + 1]); })};
}
inline PairRow load_pairs(const int8_t* row) {
    return {each([=](int i) { return float(row[2 * i]); }),
            each([=](int i) { return float(row[2 * i + 1]); })};
}
#ifdef TACO_EMULATE_BF16
inline void store_pairs(Bf16Operand* p, PairRow row) {
    for (int i = 0; i < LANES; ++i) {
        p[2 * i] = to_bf16(row.even.v[i]);
        p[2 * i + 1] = to_bf16(row.odd.v[i]);
    }
}
inline F32 dot_pairs(F32 sum, PairRow row, const Bf16Operand* a) {
    return fma(set1(from_bf16(a[0])), row.even, fma(set1(from_bf16(a[1])), row.odd, sum));
}
inline F32 store_operands(Bf16Operand* p, F32 low, F32 high, F32 sum) {
    store_bf16(p, low);
    store_bf16(p + LANES, high);
    return each([&](int i) { return sum.v[i] + from_bf16(p[2 * i + 1]) + from_bf16(p[2 * i]); });
}
inline Bf16Operand encode_bf16(float x) { return to_bf16(x); }
inline void store_bf16_operand(Bf16Operand* p, F32 a) { store_bf16(p, a); }
#else
inline void store_pairs(Bf16Operand* p, PairRow row) {
    store(p, row.even);
    store(p + 16, row.odd);
}
inline F32 dot_pairs(F32 sum, PairRow row, const Bf16Operand* a) {
    return fma(set1(a[1]), row.odd, fma(set1(a[0]), row.even, sum));
}
inline F32 store_operands(Bf16Operand* p, F32 low, F32 high, F32 sum) {
    store(p, low);
    store(p + LANES, high);
    return add(sum, add(low, high));
}
inline Bf16Operand encode_bf16(float x) { return x; }
inline void store_bf16_operand(Bf16Operand* p, F32 a) { store(p, a); }
#endif

constexpr int QUAD_PARTS = 1;
struct QuadPart {
    const int8_t* row;
};
inline QuadPart load_quads(const int8_t* row, int) { return {row}; }
inline F32 load_byte_of_quads(const int8_t* row, int64_t index) {
    return each([=](int i) { return float(row[4 * i + index]); });
}
inline I32 dot_quads(I32 sum, QuadPart row, const Int8Operand* a, int) {
    for (int i = 0; i < LANES; ++i) {
        for (int k = 0; k < 4; ++k) sum.v[i] += int32_t(row.row[4 * i + k]) * a[k];
    }
    return sum;
}
inline I32 dot_unsigned_quad(I32 sum, const int8_t* row, uint32_t quad) {
    for (int i = 0; i < LANES; ++i) {
        for (int k = 0; k < 4; ++k) sum.v[i] += int32_t(quad >> 8 * k & 255) * row[4 * i + k];
    }
    return sum;
}
#ifdef TACO_EMULATE_AMX
inline void store_i8_operands(Int8Operand* p, const F32 (&numbers)[4]) {
    for (int i = 0; i < 4; ++i) store_i8(p + i * LANES, numbers[i]);
}
#endif
inline void encode_i8(Int8Operand* out, const int8_t* q) {
    for (int i = 0; i < LANES; ++i) out[i] = Int8Operand(q[i] + INT8_OFFSET);
}
// Transposes 16 x 16 floats.
inline void transpose_floats(float* out, const float* in) {
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 16; ++column) out[column * 16 + row] = in[row * 16 + column];
    }
}

}  // namespace TACO_ISA

#include "isa/reduce_rows.h"
#include "isa/transpose.h"
