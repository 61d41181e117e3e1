// Sixteen-lane vectors on AVX2 and FMA: two 256-bit registers each.
//
// Kernels are written once, over the names that the three vec_*.h files all define; the build
// includes one of them. A name that is in one file must be in all.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "runtime/types.h"

namespace TACO_ISA {

constexpr int LANES = 16;
// Accumulators of sixteen lanes that fit in registers beside two operands.
constexpr int MAX_ACCUMULATORS = 6;

// Operand of a bf16 matrix: float, since bf16 must be widened anyway.
using Bf16Operand = float;
// Operand of an int8 matrix: four in the order 0, 2, 1, 3 (see `dot_quads`).
using Int8Operand = int16_t;
// Added to each quantized activation before the product, and removed again with the column sums.
constexpr int INT8_OFFSET = 0;

struct F32 {
    __m256 low, high;
};

struct I32 {
    __m256i low, high;
};

// Makes the compiler keep the vector in registers here. Otherwise it moves the arithmetic of inner
// loops until sums are spilled.
inline void keep(F32& a) { asm volatile("" : "+x"(a.low), "+x"(a.high)); }
inline void keep(I32& a) { asm volatile("" : "+x"(a.low), "+x"(a.high)); }

inline F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32 v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}

inline F32 add(F32 a, F32 b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline F32 sub(F32 a, F32 b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline F32 mul(F32 a, F32 b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline F32 div(F32 a, F32 b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a * b + c, rounded once.
inline F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32 max(F32 a, F32 b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline F32 min(F32 a, F32 b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline F32 round_to_even(F32 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}
// a * 2^n for whole n, where a and the product are normal numbers.
inline F32 mul_pow2(F32 a, F32 n) {
    const auto half = [](__m256 x, __m256 power) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
    };
    return {half(a.low, n.low), half(a.high, n.high)};
}
// 2^fraction(a) * 2^floor(a) is 2^a. What `mul_floor_pow2` takes as n: a, or the least exponent.
inline F32 limit_exponent(F32 a) { return max(set1(-126), a); }  // NaN stays NaN
// a - floor(a), not below 0; 0 of infinity where `limit_exponent` keeps it.
inline F32 fraction(F32 a) {
    return {_mm256_sub_ps(a.low, _mm256_floor_ps(a.low)),
            _mm256_sub_ps(a.high, _mm256_floor_ps(a.high))};
}
// a * 2^floor(n), where a is a normal number and the product does not overflow.
inline F32 mul_floor_pow2(F32 a, F32 n) {
    return mul_pow2(a, {_mm256_floor_ps(n.low), _mm256_floor_ps(n.high)});
}

// The number whose bits are `bits` less those of a, as integers.
inline F32 sub_bits(int32_t bits, F32 a) {
    const auto half = [=](__m256 x) {
        return _mm256_castsi256_ps(
            _mm256_sub_epi32(_mm256_set1_epi32(bits), _mm256_castps_si256(x)));
    };
    return {half(a.low), half(a.high)};
}

// 0, 1, ... 15
inline F32 lane_numbers() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}
// Lane by lane: a < b ? x : y.
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
// Lane by lane: bit i of the lowest sixteen is set ? x[i] : y[i].
inline F32 select_bits(uint32_t bits, F32 x, F32 y) {
    const __m256i all = _mm256_set1_epi32(int(bits));
    const auto half = [&](__m256i lanes, __m256 a, __m256 b) {
        const __m256i is_set = _mm256_cmpeq_epi32(_mm256_and_si256(all, lanes), lanes);
        return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(is_set));
    };
    const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return {half(low, x.low, y.low), half(_mm256_slli_epi32(low, 8), x.high, y.high)};
}
// Bit i is set where a[i] < b[i].
inline uint32_t less_bits(F32 a, F32 b) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ));
    return uint32_t(low) | uint32_t(high) << 8;
}

inline float reduce_add(F32 v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F32 v) {
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline F32 load_bf16(const bf16* p) {
    const auto widen = [](__m128i x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    };
    return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// Rounds to nearest even; NaN stays NaN.
inline void store_bf16(bf16* p, F32 v) {
    const auto narrow = [](__m256 x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded =
            _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    };
    const __m256i mixed = _mm256_packus_epi32(narrow(v.low), narrow(v.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}
// Rounds 32 numbers. Instruction sets whose products take denormal numbers as zero may round these
// to zero.
inline void store_bf16(bf16* p, F32 low, F32 high) {
    store_bf16(p, low);
    store_bf16(p + LANES, high);
}
// Loads IEEE half precision.
inline F32 load_f16(const uint16_t* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline F32 load_i8(const int8_t* p) {
    const auto half = [](const int8_t* at) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    };
    return {half(p), half(p + 8)};
}
// Rounds to nearest even and saturates.
inline void store_i8(int8_t* p, F32 v) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I32 load_i32(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store_i32(int32_t* p, I32 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.high);
}
inline I32 sub(I32 a, I32 b) {
    return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
// a * 2^N
template <int N>
inline I32 shift_left(I32 a) {
    return {_mm256_slli_epi32(a.low, N), _mm256_slli_epi32(a.high, N)};
}
inline F32 to_float(I32 v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
// a / 2^N, rounded down.
template <int N>
inline I32 shift_right(I32 a) {
    return {_mm256_srai_epi32(a.low, N), _mm256_srai_epi32(a.high, N)};
}
inline I32 set1_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I32 add(I32 a, I32 b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline I32 bit_and(I32 a, I32 b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
inline I32 bit_or(I32 a, I32 b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
// The same bits as another type.
inline F32 as_float(I32 a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
inline I32 as_bits(F32 a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
inline I32 load_u8(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
// a[0], b[0], a[1], b[1], ... a[7], b[7]; and the same of lanes 8 to 15.
inline F32 interleave_low(F32 a, F32 b) {
    const __m256 low = _mm256_unpacklo_ps(a.low, b.low), high = _mm256_unpackhi_ps(a.low, b.low);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
inline F32 interleave_high(F32 a, F32 b) {
    return interleave_low({a.high, a.high}, {b.high, b.high});
}
// The sixteen numbers of 4-bit codes.
struct Table16 {
    __m256 low, high;
};
inline Table16 load_table(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
// The numbers of code N of each lane, which holds eight codes.
template <int N>
inline F32 look_up(const Table16& table, I32 a) {
    const auto half = [&](__m256i lanes) {
        const __m256i codes = _mm256_srli_epi32(lanes, 4 * N);
        const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, codes),
                                _mm256_permutevar8x32_ps(table.high, codes), is_high);
    };
    return {half(a.low), half(a.high)};
}

// A row of a bf16 panel: sixteen columns at two consecutive k.
struct PairRow {
    F32 even, odd;
};
inline PairRow load_pairs(const bf16* row) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 16));
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
             _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(low, upper)),
             _mm256_castsi256_ps(_mm256_and_si256(high, upper))}};
}
// A row of an int8 panel.
inline PairRow load_pairs(const int8_t* row) {
    const __m128i* bytes = reinterpret_cast<const __m128i*>(row);
    const __m256i low = _mm256_cvtepi16_epi32(_mm_loadu_si128(bytes));
    const __m256i high = _mm256_cvtepi16_epi32(_mm_loadu_si128(bytes + 1));
    const auto even = [](__m256i x) {
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24));
    };
    const auto odd = [](__m256i x) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 8)); };
    return {{even(low), even(high)}, {odd(low), odd(high)}};
}
// A panel of Bf16Operands, as a product reads one that was widened before: 32 items.
inline void store_pairs(Bf16Operand* p, PairRow row) {
    store(p, row.even);
    store(p + 16, row.odd);
}
// sum + a[0] * row at the first k + a[1] * row at the second.
inline F32 dot_pairs(F32 sum, PairRow row, const Bf16Operand* a) {
    return fma(set1(a[1]), row.odd, fma(set1(a[0]), row.even, sum));
}

// Number of parts in which a row of an int8 panel (sixteen columns at four consecutive k) is read:
// here the even k, then the odd ones, widened to pairs of int16.
constexpr int QUAD_PARTS = 2;
struct QuadPart {
    I32 pairs;
};
inline QuadPart load_quads(const int8_t* row, int part) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32));
    const auto even = [](__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); };
    const auto odd = [](__m256i x) { return _mm256_srai_epi16(x, 8); };
    if (part == 0) return {{even(low), even(high)}};
    return {{odd(low), odd(high)}};
}
// Byte `index` of each quad of a row.
inline F32 load_byte_of_quads(const int8_t* row, int64_t index) {
    const __m256i shifts = _mm256_set1_epi32(int(24 - 8 * index));
    const auto half = [&](const int8_t* p) {
        const __m256i quads = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sllv_epi32(quads, shifts), 24));
    };
    return {half(row), half(row + 32)};
}
// sum + the products at the part's k; exact.
inline I32 dot_quads(I32 sum, QuadPart row, const Int8Operand* a, int part) {
    int32_t pair;
    std::memcpy(&pair, a + 2 * part, sizeof pair);
    const __m256i operands = _mm256_set1_epi32(pair);
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(row.pairs.low, operands)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(row.pairs.high, operands))};
}
// sum + the products of four unsigned numbers with each quad of a row; exact if only one of them is
// not 0.
inline I32 dot_unsigned_quad(I32 sum, const int8_t* row, uint32_t quad) {
    const __m256i numbers = _mm256_set1_epi32(int(quad)), ones = _mm256_set1_epi16(1);
    const auto add_half = [=](__m256i half, const int8_t* quads) {
        const __m256i columns = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quads));
        const __m256i pairs = _mm256_maddubs_epi16(numbers, columns);
        return _mm256_add_epi32(half, _mm256_madd_epi16(pairs, ones));
    };
    return {add_half(sum.low, row), add_half(sum.high, row + 32)};
}
// Encodes sixteen quantized activations for `dot_quads`: each four as numbers 0, 2, 1 and 3.
inline void encode_i8(Int8Operand* out, const int8_t* q) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_cvtepi8_epi16(_mm_shuffle_epi8(numbers, order)));
}
// Encodes 32 floats for `dot_pairs`. Returns `sum` plus these numbers as they were rounded, two of
// them in each lane.
inline F32 store_operands(Bf16Operand* p, F32 low, F32 high, F32 sum) {
    store(p, low);
    store(p + LANES, high);
    return add(sum, add(low, high));
}
// Encodes one float for `dot_pairs`.
inline Bf16Operand encode_bf16(float x) { return x; }
inline void store_bf16_operand(Bf16Operand* p, F32 v) { store(p, v); }
// Transposes 8 x 8 floats, in rows of sixteen.
inline void transpose_eight(float* out, const float* in) {
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        const __m256 even = _mm256_loadu_ps(in + i * LANES);
        const __m256 odd = _mm256_loadu_ps(in + (i + 1) * LANES);
        pairs[i] = _mm256_unpacklo_ps(even, odd);
        pairs[i + 1] = _mm256_unpackhi_ps(even, odd);
    }
    // quads[i] and quads[4 + i]: columns i and 4 + i of the first and of the last four rows.
    for (int i = 0; i < 8; i += 4) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(out + i * LANES, _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x20));
        _mm256_storeu_ps(out + (4 + i) * LANES,
                         _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x31));
    }
}
// Transposes 16 x 16 floats.
inline void transpose_floats(float* out, const float* in) {
    for (int row = 0; row < LANES; row += 8) {
        for (int column = 0; column < LANES; column += 8) {
            transpose_eight(out + column * LANES + row, in + row * LANES + column);
        }
    }
}

}  // namespace TACO_ISA

#include "isa/reduce_rows.h"
#include "isa/transpose.h"
