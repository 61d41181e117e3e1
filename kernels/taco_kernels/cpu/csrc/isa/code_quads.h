// Dot products of small codes with signed int8 numbers, for sixteen columns at a time: what
// products of matrices of codes (matmul/codes/grouped_int8.h) need of an instruction set.
//
// A quad is the codes of one column at four consecutive k. All sums are exact.
#pragma once

#include "isa/vec.h"

namespace TACO_ISA {

#if defined(TACO_EMULATED)

// Added to each 8-bit code before the product.
constexpr int BYTE_CODE_OFFSET = 128;

// Of codes below 64.
struct SmallQuads {
    uint8_t codes[4 * LANES];
};
struct ByteQuads {
    uint8_t codes[4 * LANES];
};

// Quads of 4-bit codes: the low halves of 64 bytes, or the high ones.
inline SmallQuads load_nibble_quads(const char* p, int half) {
    SmallQuads out;
    for (int i = 0; i < 4 * LANES; ++i) out.codes[i] = uint8_t(p[i]) >> (4 * half) & 15;
    return out;
}
// Quads of codes of 4 + HIGH bits: part number `part` of a block (code_args.h).
template <int HIGH>
inline SmallQuads load_joined_quads(const char* block, int part) {
    SmallQuads out = load_nibble_quads(block + 64 + part / 2 * 64, part % 2);
    for (int i = 0; i < 4 * LANES; ++i) {
        const int high = uint8_t(block[i]) >> (HIGH * part) & ((1 << HIGH) - 1);
        out.codes[i] = uint8_t(out.codes[i] | high << 4);
    }
    return out;
}
// Quads with a byte for each code.
inline SmallQuads load_small_quads(const char* p) {
    SmallQuads out;
    std::memcpy(out.codes, p, sizeof out.codes);
    return out;
}
inline void store_quads(char* p, const SmallQuads& quads) {
    std::memcpy(p, quads.codes, sizeof quads.codes);
}
inline ByteQuads load_byte_quads(const char* p) {
    ByteQuads out;
    for (int i = 0; i < 4 * LANES; ++i) out.codes[i] = uint8_t(p[i]) ^ 0x80;
    return out;
}
// sum + the products of each column's quad with four numbers.
template <class Quads>
inline I32 dot_codes(I32 sum, const Quads& quads, const int8_t* a) {
    for (int i = 0; i < 4 * LANES; ++i) sum.v[i / 4] += quads.codes[i] * a[i % 4];
    return sum;
}
// sum + the four signed numbers of each lane.
inline I32 add_quads(I32 sum, const int8_t* p) {
    for (int i = 0; i < 4 * LANES; ++i) sum.v[i / 4] += p[i];
    return sum;
}
inline I32 mul(I32 a, I32 b) {
    return each_i32([&](int i) { return a.v[i] * b.v[i]; });
}
// Whole numbers as integers.
inline I32 to_int(F32 a) {
    return each_i32([&](int i) { return int32_t(a.v[i]); });
}
// Some bits of each lane of 32, from bit `shift` on, within a byte.
inline F32 bits_of_lanes(const char* p, int shift, int mask) {
    return each([=](int i) { return float(uint8_t(p[4 * i + shift / 8]) >> shift % 8 & mask); });
}
// Stores codes less the zeros of their columns, which then are from -128 to 127.
inline void store_less_zeros(int8_t* out, const SmallQuads& quads, I32 zeros) {
    for (int i = 0; i < 4 * LANES; ++i) out[i] = int8_t(quads.codes[i] - zeros.v[i / 4]);
}
// The inverse of encode_i8, of four numbers.
inline void decode_quad(int8_t* q, const Int8Operand* in) {
    for (int i = 0; i < 4; ++i) q[i] = int8_t(in[i] - INT8_OFFSET);
}

#elif defined(__AVX512F__)

// Codes are the unsigned factor of the VNNI instruction, so 8-bit ones are made positive.
constexpr int BYTE_CODE_OFFSET = 128;

struct SmallQuads {
    __m512i v;
};
struct ByteQuads {
    __m512i v;
};

inline SmallQuads load_nibble_quads(const char* p, int half) {
    const __m512i bytes = _mm512_loadu_si512(p);
    const __m512i low = half ? _mm512_srli_epi16(bytes, 4) : bytes;
    return {_mm512_and_si512(low, _mm512_set1_epi8(15))};
}
template <int HIGH>
inline SmallQuads load_joined_quads(const char* block, int part) {
    const __m512i bytes = _mm512_loadu_si512(block + 64 + part / 2 * 64);
    const __m512i low = part % 2 ? _mm512_srli_epi16(bytes, 4) : bytes;
    const __m512i bits = _mm512_loadu_si512(block);
    const int shift = HIGH * part - 4;
    const __m512i high = shift < 0 ? _mm512_slli_epi16(bits, unsigned(-shift))
                                   : _mm512_srli_epi16(bits, unsigned(shift));
    // Bits of the mask choose between the two.
    const __m512i joined = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), low, high, 0xca);
    return {_mm512_and_si512(joined, _mm512_set1_epi8((16 << HIGH) - 1))};
}
inline SmallQuads load_small_quads(const char* p) { return {_mm512_loadu_si512(p)}; }
inline void store_quads(char* p, SmallQuads quads) { _mm512_storeu_si512(p, quads.v); }
inline ByteQuads load_byte_quads(const char* p) {
    return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
}
template <class Quads>
inline I32 dot_codes(I32 sum, Quads quads, const int8_t* a) {
    int32_t quad;
    std::memcpy(&quad, a, sizeof quad);
    return {_mm512_dpbusd_epi32(sum.v, quads.v, _mm512_set1_epi32(quad))};
}
inline I32 add_quads(I32 sum, const int8_t* p) {
    return {_mm512_dpbusd_epi32(sum.v, _mm512_set1_epi8(1), _mm512_loadu_si512(p))};
}
inline I32 mul(I32 a, I32 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline I32 to_int(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline F32 bits_of_lanes(const char* p, int shift, int mask) {
    const __m512i lanes = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(shift));
    return {_mm512_cvtepi32_ps(_mm512_and_si512(lanes, _mm512_set1_epi32(mask)))};
}
inline void store_less_zeros(int8_t* out, SmallQuads quads, I32 zeros) {
    const __m512i low = _mm512_and_si512(zeros.v, _mm512_set1_epi32(255));
    const __m512i bytes = _mm512_mullo_epi32(low, _mm512_set1_epi32(0x01010101));
    _mm512_storeu_si512(out, _mm512_sub_epi8(quads.v, bytes));
}
inline void decode_quad(int8_t* q, const Int8Operand* in) {
    for (int i = 0; i < 4; ++i) q[i] = int8_t(in[i] - INT8_OFFSET);
}

#else

constexpr int BYTE_CODE_OFFSET = 0;

struct SmallQuads {
    __m256i low, high;
};
// Their magnitudes are the unsigned factor of the multiplying instruction; activations take the
// signs.
struct ByteQuads {
    __m256i low, high;
};

inline SmallQuads load_nibble_quads(const char* p, int half) {
    const auto load = [=](const char* at) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        const __m256i low = half ? _mm256_srli_epi16(bytes, 4) : bytes;
        return _mm256_and_si256(low, _mm256_set1_epi8(15));
    };
    return {load(p), load(p + 32)};
}
template <int HIGH>
inline SmallQuads load_joined_quads(const char* block, int part) {
    const auto half = [=](int64_t at, __m256i low) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + at));
        const int shift = HIGH * part - 4;
        const __m256i high =
            shift < 0 ? _mm256_slli_epi16(bits, -shift) : _mm256_srli_epi16(bits, shift);
        const __m256i mask = _mm256_set1_epi8((16 << HIGH) - 16);
        return _mm256_or_si256(low, _mm256_and_si256(high, mask));
    };
    const SmallQuads low = load_nibble_quads(block + 64 + part / 2 * 64, part % 2);
    return {half(0, low.low), half(32, low.high)};
}
inline SmallQuads load_small_quads(const char* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void store_quads(char* p, SmallQuads quads) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), quads.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), quads.high);
}
inline ByteQuads load_byte_quads(const char* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
// Sums of two products have 16 bits: codes are up to 63, or 128, and activations up to 127.
inline __m256i add_pairs(__m256i sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I32 dot_codes(I32 sum, SmallQuads quads, const int8_t* a) {
    int32_t quad;
    std::memcpy(&quad, a, sizeof quad);
    const __m256i numbers = _mm256_set1_epi32(quad);
    return {add_pairs(sum.low, _mm256_maddubs_epi16(quads.low, numbers)),
            add_pairs(sum.high, _mm256_maddubs_epi16(quads.high, numbers))};
}
inline I32 dot_codes(I32 sum, ByteQuads quads, const int8_t* a) {
    int32_t quad;
    std::memcpy(&quad, a, sizeof quad);
    const __m256i numbers = _mm256_set1_epi32(quad);
    const auto pairs = [=](__m256i codes) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(numbers, codes));
    };
    return {add_pairs(sum.low, pairs(quads.low)), add_pairs(sum.high, pairs(quads.high))};
}
inline I32 add_quads(I32 sum, const int8_t* p) {
    const auto pairs = [](const int8_t* at) {
        return _mm256_maddubs_epi16(_mm256_set1_epi8(1),
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    };
    return {add_pairs(sum.low, pairs(p)), add_pairs(sum.high, pairs(p + 32))};
}
inline I32 mul(I32 a, I32 b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
inline I32 to_int(F32 a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline F32 bits_of_lanes(const char* p, int shift, int mask) {
    const auto half = [=](const char* at) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        const __m256i lanes = _mm256_srl_epi32(bits, _mm_cvtsi32_si128(shift));
        return _mm256_cvtepi32_ps(_mm256_and_si256(lanes, _mm256_set1_epi32(mask)));
    };
    return {half(p), half(p + 32)};
}
inline void decode_quad(int8_t* q, const Int8Operand* in) {
    q[0] = int8_t(in[0]);
    q[1] = int8_t(in[2]);
    q[2] = int8_t(in[1]);
    q[3] = int8_t(in[3]);
}

#endif

}  // namespace TACO_ISA
