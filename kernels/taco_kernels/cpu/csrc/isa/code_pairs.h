// What decoding codes to the operands of bf16 products (matmul/codes/decode_bf16.h) needs of an
// instruction set.
#pragma once

#include <type_traits>

#include "isa/vec.h"

namespace TACO_ISA {

// Whether bf16 numbers are multiplied as floats.
constexpr bool WIDENS_PAIRS = std::is_same_v<Bf16Operand, float>;

// Two vectors of numbers make a pair row (sixteen rows of W at two columns). Where pairs are
// widened, these are the first column and the second one. Else their lanes are in the order of a
// bf16 panel: the first vector has both columns of eight rows, one after the other.

// `load_e4m3` gives numbers divided by this: the bits of an e4m3 number, read as half precision.
constexpr float E4M3_FACTOR = 256;
// Numbers of 32 codes: the first sixteen, and the others.
struct TwoVectors {
    F32 first, second;
};

#if defined(TACO_EMULATED)

inline TwoVectors load_e4m3(const char* p) {
    const auto number = [=](int i) { return from_float8(e4m3{uint8_t(p[i])}) / E4M3_FACTOR; };
    return {each(number), each([=](int i) { return number(LANES + i); })};
}
// Rounds two vectors to a pair row of bf16.
inline PairRow round_pairs(F32 first, F32 second) {
#ifdef TACO_EMULATE_BF16
    bf16 row[2 * LANES];
    store_bf16(row, first, second);
    return load_pairs(row);
#else
    const auto rounded = [](const F32& a) {
        return each([&](int i) { return from_bf16(to_bf16(a.v[i])); });
    };
    return {rounded(first), rounded(second)};
#endif
}

#elif defined(__AVX512F__)

// Half precision has the bits of an e4m3 number, with a bias of the exponent that is 8 larger.
inline TwoVectors load_e4m3(const char* p) {
    const __m512i codes =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i halves =
        _mm512_and_si512(_mm512_slli_epi16(codes, 7), _mm512_set1_epi16(short(0xbfff)));
    return {{_mm512_cvtph_ps(_mm512_castsi512_si256(halves))},
            {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))}};
}
#ifdef __AVX512BF16__
inline PairRow round_pairs(F32 first, F32 second) {
    return {_mm512_cvtne2ps_pbh(second.v, first.v)};
}
#else
// To nearest even. A NaN of arithmetic stays one.
inline PairRow round_pairs(F32 first, F32 second) {
    const auto rounded = [](__m512 a) {
        const __m512i bits = _mm512_castps_si512(a);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i sum =
            _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        return F32{_mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(int(0xffff0000u))))};
    };
    return {rounded(first.v), rounded(second.v)};
}
#endif

#else

inline TwoVectors load_e4m3(const char* p) {
    const auto widen = [](const char* at) {
        const __m256i codes =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        const __m256i halves =
            _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(short(0xbfff)));
        return F32{_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                   _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
    };
    return {widen(p), widen(p + LANES)};
}
inline PairRow round_pairs(F32 first, F32 second) {
    const auto rounded = [](__m256 a) {
        const __m256i bits = _mm256_castps_si256(a);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum =
            _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(int(0xffff0000u))));
    };
    return {{rounded(first.low), rounded(first.high)}, {rounded(second.low), rounded(second.high)}};
}

#endif

}  // namespace TACO_ISA
