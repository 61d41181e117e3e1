// Sixteen-lane vectors on AVX-512: one register each. vec_avx2.h describes the names.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "runtime/types.h"

namespace TACO_ISA {

constexpr int LANES = 16;
constexpr int MAX_ACCUMULATORS = 28;

#ifdef __AVX512BF16__
using Bf16Operand = bf16;
#else
using Bf16Operand = float;
#endif
#ifdef __AMX_INT8__
using Int8Operand = int8_t;
constexpr int INT8_OFFSET = 0;
#else
// The VNNI instruction multiplies unsigned by signed bytes.
using Int8Operand = uint8_t;
constexpr int INT8_OFFSET = 128;
#endif

struct F32 {
    __m512 v;
};

struct I32 {
    __m512i v;
};

inline void keep(F32& a) { asm volatile("" : "+v"(a.v)); }
inline void keep(I32& a) { asm volatile("" : "+v"(a.v)); }

inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }

inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 round_to_even(F32 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F32 mul_pow2(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// VSCALEFPS takes a hundred times as long where its result underflows. NaN stays NaN.
inline F32 limit_exponent(F32 a) { return max(set1(-126), a); }
inline F32 fraction(F32 a) {
    return {_mm512_reduce_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
inline F32 mul_floor_pow2(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline F32 sub_bits(int32_t bits, F32 a) {
    return {
        _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(bits), _mm512_castps_si512(a.v)))};
}

inline F32 lane_numbers() {
    return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline F32 select_bits(uint32_t bits, F32 x, F32 y) {
    return {_mm512_mask_blend_ps(__mmask16(bits), y.v, x.v)};
}
inline uint32_t less_bits(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }

inline float reduce_add(F32 a) { return _mm512_reduce_add_ps(a.v); }
inline float reduce_max(F32 a) { return _mm512_reduce_max_ps(a.v); }
// The rows reduced: lane r is that of row r, with the bits of row r alone.
template <class Join>
inline F32 reduce_rows(const F32 (&rows)[LANES], Join join) {
    __m512 halves[8], quarters[4], pairs[2];  // each of twice as many rows as the last
    for (int i = 0; i < 8; ++i) {
        const __m512 a = rows[2 * i].v, b = rows[2 * i + 1].v;
        halves[i] = join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    for (int i = 0; i < 4; ++i) {
        const __m512 a = halves[2 * i], b = halves[2 * i + 1];
        quarters[i] = join(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    for (int i = 0; i < 2; ++i) {
        const __m512d a = _mm512_castps_pd(quarters[2 * i]);
        const __m512d b = _mm512_castps_pd(quarters[2 * i + 1]);
        pairs[i] = join(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                        _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const __m512 sums = join(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88),
                             _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm512_permutexvar_ps(order, sums)};
}
inline F32 reduce_add(const F32 (&rows)[LANES]) {
    return reduce_rows(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}
inline F32 reduce_max(const F32 (&rows)[LANES]) {
    return reduce_rows(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}

inline F32 load_bf16(const bf16* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
inline void store_bf16(bf16* p, F32 a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i kept = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, rounded, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(kept));
}
inline F32 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32 load_i8(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
inline void store_i8(int8_t* p, F32 a) {
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline I32 zero_i32() { return {_mm512_setzero_si512()}; }
inline I32 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_i32(int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
inline I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
template <int N>
inline I32 shift_left(I32 a) {
    return {_mm512_slli_epi32(a.v, N)};
}
inline F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
template <int N>
inline I32 shift_right(I32 a) {
    return {_mm512_srai_epi32(a.v, N)};
}
inline I32 set1_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32 bit_and(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I32 bit_or(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }
inline F32 as_float(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
inline I32 as_bits(F32 a) { return {_mm512_castps_si512(a.v)}; }
inline I32 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline F32 interleave_low(F32 a, F32 b) {
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return {_mm512_permutex2var_ps(a.v, order, b.v)};
}
inline F32 interleave_high(F32 a, F32 b) {
    const __m512i order =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return {_mm512_permutex2var_ps(a.v, order, b.v)};
}
struct Table16 {
    __m512 v;
};
inline Table16 load_table(const float* p) { return {_mm512_loadu_ps(p)}; }
template <int N>
inline F32 look_up(const Table16& table, I32 a) {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.v, 4 * N), table.v)};
}

#ifdef __AVX512BF16__
struct PairRow {
    __m512bh v;
};
inline PairRow load_pairs(const bf16* row) { return {(__m512bh)_mm512_loadu_si512(row)}; }
inline PairRow load_pairs(const int8_t* row) {
    return {_mm512_cvtne2ps_pbh(load_i8(row + 16).v, load_i8(row).v)};
}
inline void store_pairs(Bf16Operand* p, PairRow row) { _mm512_storeu_si512(p, (__m512i)row.v); }
inline F32 dot_pairs(F32 sum, PairRow row, const Bf16Operand* a) {
    int32_t pair;
    std::memcpy(&pair, a, sizeof pair);
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_set1_epi32(pair), row.v)};
}
inline F32 store_operands(Bf16Operand* p, F32 low, F32 high, F32 sum) {
    const __m512bh operands = _mm512_cvtne2ps_pbh(high.v, low.v);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    _mm512_storeu_si512(p, (__m512i)operands);
    return {_mm512_dpbf16_ps(sum.v, operands, ones)};
}
inline void store_bf16(bf16* p, F32 low, F32 high) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v));
}
inline Bf16Operand encode_bf16(float x) { return to_bf16(x); }
// Denormal numbers become 0, which products take them for.
inline void store_bf16_operand(Bf16Operand* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v));
}
#else
struct PairRow {
    F32 even, odd;
};
inline PairRow load_pairs(const bf16* row) {
    const __m512i pairs = _mm512_loadu_si512(row);
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))))}};
}
inline PairRow load_pairs(const int8_t* row) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    const __m512i pairs = _mm512_cvtepi16_epi32(bytes);
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24);
    return {{_mm512_cvtepi32_ps(even)}, {_mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8))}};
}
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
inline void store_bf16(bf16* p, F32 low, F32 high) {
    store_bf16(p, low);
    store_bf16(p + LANES, high);
}
inline Bf16Operand encode_bf16(float x) { return x; }
inline void store_bf16_operand(Bf16Operand* p, F32 a) { store(p, a); }
#endif

// Row l of the result: lane l of each register, of 128 bits.
inline void transpose_lanes(__m512i (&r)[4]) {
    const __m512i even01 = _mm512_shuffle_i64x2(r[0], r[1], 0x88);
    const __m512i odd01 = _mm512_shuffle_i64x2(r[0], r[1], 0xdd);
    const __m512i even23 = _mm512_shuffle_i64x2(r[2], r[3], 0x88);
    const __m512i odd23 = _mm512_shuffle_i64x2(r[2], r[3], 0xdd);
    r[0] = _mm512_shuffle_i64x2(even01, even23, 0x88);
    r[1] = _mm512_shuffle_i64x2(odd01, odd23, 0x88);
    r[2] = _mm512_shuffle_i64x2(even01, even23, 0xdd);
    r[3] = _mm512_shuffle_i64x2(odd01, odd23, 0xdd);
}

// Transposes 16 x 16 floats.
inline void transpose_floats(float* out, const float* in) {
    __m512i columns[4][4];  // [column % 4][row / 4]: lane l holds four rows of column 4 * l + ...
    for (int k = 0; k < 4; ++k) {
        const float* rows = in + 4 * k * 16;
        const __m512 a = _mm512_loadu_ps(rows), b = _mm512_loadu_ps(rows + 16);
        const __m512 c = _mm512_loadu_ps(rows + 32), d = _mm512_loadu_ps(rows + 48);
        const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        const __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        const __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
        const __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        columns[0][k] = _mm512_castpd_si512(_mm512_unpacklo_pd(ab_low, cd_low));
        columns[1][k] = _mm512_castpd_si512(_mm512_unpackhi_pd(ab_low, cd_low));
        columns[2][k] = _mm512_castpd_si512(_mm512_unpacklo_pd(ab_high, cd_high));
        columns[3][k] = _mm512_castpd_si512(_mm512_unpackhi_pd(ab_high, cd_high));
    }
    for (int j = 0; j < 4; ++j) {
        transpose_lanes(columns[j]);
        for (int l = 0; l < 4; ++l) _mm512_storeu_si512(out + (4 * l + j) * 16, columns[j][l]);
    }
}

// [8 pairs of rows][16 columns][2] to [8 pairs of columns][16 rows][2].
inline void transpose_pairs(bf16* out, const bf16* in) {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    __m512i even[4], odd[4];  // pairs of columns 0, 2, 4, 6 and 1, 3, 5, 7 of two pairs of rows
    for (int i = 0; i < 4; ++i) {
        const bf16* rows = in + 64 * i;
        const __m512i a = _mm512_shuffle_epi8(_mm512_loadu_si512(rows), order);
        const __m512i b = _mm512_shuffle_epi8(_mm512_loadu_si512(rows + 32), order);
        even[i] = _mm512_unpacklo_epi64(a, b);
        odd[i] = _mm512_unpackhi_epi64(a, b);
    }
    transpose_lanes(even);
    transpose_lanes(odd);
    for (int l = 0; l < 4; ++l) {
        _mm512_storeu_si512(out + 64 * l, even[l]);
        _mm512_storeu_si512(out + 64 * l + 32, odd[l]);
    }
}

constexpr int QUAD_PARTS = 1;
struct QuadPart {
    __m512i v;
};
inline QuadPart load_quads(const int8_t* row, int) { return {_mm512_loadu_si512(row)}; }
// Byte `index` of each quad of a row.
inline F32 load_byte_of_quads(const int8_t* row, int64_t index) {
    const __m512i upper =
        _mm512_sllv_epi32(_mm512_loadu_si512(row), _mm512_set1_epi32(int(24 - 8 * index)));
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(upper, 24))};
}
// sum + the products of four unsigned numbers with each quad of a row; exact if only one of them is
// not 0.
inline I32 dot_unsigned_quad(I32 sum, const int8_t* row, uint32_t quad) {
    const __m512i numbers = _mm512_set1_epi32(int(quad));
    return {_mm512_dpbusd_epi32(sum.v, numbers, _mm512_loadu_si512(row))};
}
#ifndef __AMX_INT8__
inline I32 dot_quads(I32 sum, QuadPart row, const Int8Operand* a, int) {
    int32_t quad;
    std::memcpy(&quad, a, sizeof quad);
    return {_mm512_dpbusd_epi32(sum.v, _mm512_set1_epi32(quad), row.v)};
}
#endif
#ifdef __AMX_INT8__
// Rounds 64 numbers to nearest even, saturates, and stores them as operands.
inline void store_i8_operands(Int8Operand* p, const F32 (&numbers)[4]) {
    const auto words = [](F32 a, F32 b) {
        return _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
    };
    // Packing takes 128 bits of each in turn.
    const __m512i bytes =
        _mm512_packs_epi16(words(numbers[0], numbers[1]), words(numbers[2], numbers[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, bytes));
}
#endif
inline void encode_i8(Int8Operand* out, const int8_t* q) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m128i offset = _mm_set1_epi8(int8_t(INT8_OFFSET));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_add_epi8(numbers, offset));
}

}  // namespace TACO_ISA
