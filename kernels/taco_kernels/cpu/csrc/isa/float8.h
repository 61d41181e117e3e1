// Sixteen-lane vectors of 8-bit floats: stores that saturate, and rows of panels.
#pragma once

#include <cmath>

namespace TACO_ISA {

// Numbers of an 8-bit float, and of the bits in which a float holds them.
template <class Float8>
struct Float8Limits;

template <>
struct Float8Limits<e4m3> {
    static constexpr int MANTISSA = 3, BIAS = 7;
    static constexpr float MAX = 448;
};

template <>
struct Float8Limits<e5m2> {
    static constexpr int MANTISSA = 2, BIAS = 15;
    static constexpr float MAX = 57344;
};

// How floats are rounded to `Float8`.
template <class Float8>
struct Float8Rounding : Float8Limits<Float8> {
    using Limits = Float8Limits<Float8>;
    // Bits of a float's mantissa that are rounded away.
    static constexpr int SHIFT = 23 - Limits::MANTISSA;
    // Difference of the exponents, in codes.
    static constexpr int32_t REBIAS = (127 - Limits::BIAS) << Limits::MANTISSA;
    // Bits of the smallest normal number, 2^(1 - BIAS), and of 2^(24 - MANTISSA - BIAS): the sum of
    // the latter and a smaller number than the former ends with its code.
    static constexpr int32_t MIN_NORMAL = (128 - Limits::BIAS) << 23;
    static constexpr int32_t SUBNORMAL_UNIT = (151 - Limits::MANTISSA - Limits::BIAS) << 23;
    static constexpr int32_t NAN_CODE = 0x7f;
};

#if defined(TACO_EMULATED)

// Rounds to nearest even and saturates; a NaN stays one.
template <class Float8>
inline Float8 to_float8(float x) {
    using R = Float8Rounding<Float8>;
    const auto as_float = [](int32_t bits) {
        float out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    };
    const auto as_bits = [](float number) {
        int32_t out;
        std::memcpy(&out, &number, sizeof out);
        return out;
    };
    const float size = std::min(R::MAX, std::fabs(x));
    const int32_t bits = as_bits(size);
    int32_t code = R::NAN_CODE;
    if (x == x && bits < R::MIN_NORMAL) {
        code = as_bits(size + as_float(R::SUBNORMAL_UNIT)) - R::SUBNORMAL_UNIT;
    } else if (x == x) {
        const int32_t half = (1 << (R::SHIFT - 1)) - 1 + (bits >> R::SHIFT & 1);
        code = ((bits + half) >> R::SHIFT) - R::REBIAS;
    }
    return {uint8_t(code | (std::signbit(x) ? 0x80 : 0))};
}

template <class Float8>
inline float from_float8(Float8 x) {
    using Limits = Float8Limits<Float8>;
    const int code = x.bits & 0x7f, exponent = code >> Limits::MANTISSA;
    const int mantissa = code & ((1 << Limits::MANTISSA) - 1);
    float size = std::ldexp(float(mantissa + (exponent ? 1 << Limits::MANTISSA : 0)),
                            std::max(exponent, 1) - Limits::BIAS - Limits::MANTISSA);
    if (code == 0x7f || (size > Limits::MAX && mantissa)) {
        size = std::numeric_limits<float>::quiet_NaN();
    } else if (size > Limits::MAX) {
        size = std::numeric_limits<float>::infinity();
    }
    return x.bits & 0x80 ? -size : size;
}

template <class Float8>
inline void store_float8(Float8* p, F32 a) {
    for (int i = 0; i < LANES; ++i) p[i] = to_float8<Float8>(a.v[i]);
}

template <class Float8>
inline PairRow load_float8_pairs(const Float8* row) {
    return {each([=](int i) { return from_float8(row[2 * i]); }),
            each([=](int i) { return from_float8(row[2 * i + 1]); })};
}

#elif defined(__AVX512F__)

template <class Float8>
inline void store_float8(Float8* p, F32 a) {
    using R = Float8Rounding<Float8>;
    const __m512i bits = _mm512_castps_si512(a.v);
    // The minimum is its second operand if one is NaN.
    const __m512 size = _mm512_min_ps(_mm512_set1_ps(R::MAX), _mm512_abs_ps(a.v));
    const __m512i size_bits = _mm512_castps_si512(size);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(size_bits, R::SHIFT), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32((1 << (R::SHIFT - 1)) - 1));
    const __m512i normal =
        _mm512_sub_epi32(_mm512_srli_epi32(_mm512_add_epi32(size_bits, half), R::SHIFT),
                         _mm512_set1_epi32(R::REBIAS));
    const __m512i unit = _mm512_set1_epi32(R::SUBNORMAL_UNIT);
    const __m512i subnormal =
        _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(size, _mm512_castsi512_ps(unit))), unit);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(size_bits, _mm512_set1_epi32(R::MIN_NORMAL));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    __m512i code = _mm512_mask_blend_epi32(is_small, normal, subnormal);
    code = _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(R::NAN_CODE));
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(bits, 31), 7);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)));
}

// The codes whose bf16 is no shifted code: subnormal numbers, and those that are not finite. A code
// c is one of them where (2 * c + OFFSET) mod 256 < LIMIT, without its sign.
template <class Float8>
struct SpecialCodes;

template <>
struct SpecialCodes<e4m3> {
    static constexpr char OFFSET = 2, LIMIT = 18;
    // bf16 by the lowest five bits of the code: 0 to 7 / 512, and NaN.
    static constexpr bf16 TABLE[32] = {
        0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0,      0,      0,      0,      0,      0,      0,      0, 0, 0, 0, 0, 0, 0, 0x7fc0};
};

template <>
struct SpecialCodes<e5m2> {
    static constexpr char OFFSET = 8, LIMIT = 16;
    // 0 to 3 / 65536, infinity and NaNs.
    static constexpr bf16 TABLE[32] = {0,      0x3780, 0x3800, 0x3840, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                       0,      0,      0,      0,      0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                       0x7f80, 0x7fc0, 0x7fc0, 0x7fc0};
};

// 32 numbers as bf16.
template <class Float8>
inline __m512i widen_float8(const Float8* p) {
    using Limits = Float8Limits<Float8>;
    using Special = SpecialCodes<Float8>;
    constexpr int SHIFT = 7 - Limits::MANTISSA;
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m512i codes = _mm512_cvtepi8_epi16(bytes);
    const __m512i sizes =
        _mm512_and_si512(_mm512_slli_epi16(codes, SHIFT), _mm512_set1_epi16(0x7f << SHIFT));
    const __m512i normal = _mm512_add_epi16(sizes, _mm512_set1_epi16((127 - Limits::BIAS) << 7));
    const __m256i places =
        _mm256_add_epi8(_mm256_add_epi8(bytes, bytes), _mm256_set1_epi8(Special::OFFSET));
    const __mmask32 is_special = _mm256_cmplt_epu8_mask(places, _mm256_set1_epi8(Special::LIMIT));
    const __m512i table = _mm512_loadu_si512(Special::TABLE);
    const __m512i numbers = _mm512_mask_permutexvar_epi16(normal, is_special, codes, table);
    // numbers | (codes & the sign)
    return _mm512_ternarylogic_epi32(numbers, codes, _mm512_set1_epi16(short(0x8000)), 0xf8);
}

template <class Float8>
inline PairRow load_float8_pairs(const Float8* row) {
    const __m512i pairs = widen_float8(row);
#ifdef __AVX512BF16__
    return {(__m512bh)pairs};
#else
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))))}};
#endif
}

#else

template <class Float8>
inline void store_float8(Float8* p, F32 a) {
    using R = Float8Rounding<Float8>;
    const auto encode = [](__m256 x) {
        const __m256i unit = _mm256_set1_epi32(R::SUBNORMAL_UNIT);
        const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
        // The minimum is its second operand if one is NaN.
        const __m256 size = _mm256_min_ps(_mm256_set1_ps(R::MAX), magnitude);
        const __m256i bits = _mm256_castps_si256(size);
        const __m256i odd =
            _mm256_and_si256(_mm256_srli_epi32(bits, R::SHIFT), _mm256_set1_epi32(1));
        const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32((1 << (R::SHIFT - 1)) - 1));
        const __m256i normal =
            _mm256_sub_epi32(_mm256_srli_epi32(_mm256_add_epi32(bits, half), R::SHIFT),
                             _mm256_set1_epi32(R::REBIAS));
        const __m256i subnormal = _mm256_sub_epi32(
            _mm256_castps_si256(_mm256_add_ps(size, _mm256_castsi256_ps(unit))), unit);
        const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(R::MIN_NORMAL), bits);
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        __m256i code = _mm256_blendv_epi8(normal, subnormal, is_small);
        code = _mm256_blendv_epi8(code, _mm256_set1_epi32(R::NAN_CODE), is_nan);
        const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(_mm256_castps_si256(x), 31), 7);
        return _mm256_or_si256(code, sign);
    };
    const __m256i words = _mm256_packus_epi32(encode(a.low), encode(a.high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// Sixteen numbers, each in the upper byte of its lane; the lower bytes may be anything.
inline F32 widen_float8(__m256i lanes, e5m2) {
    // As half precision, of which this type lacks the lower byte.
    const __m256i halves = _mm256_and_si256(lanes, _mm256_set1_epi16(short(0xff00)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
inline F32 widen_float8(__m256i lanes, e4m3) {
    // As half precision of 1/256 of the number: its exponent's bias is 15, not 7.
    const __m256i shifted = _mm256_srai_epi16(lanes, 1);
    const __m256i halves = _mm256_and_si256(shifted, _mm256_set1_epi16(short(0xbf80)));
    const __m256i nan_bits = _mm256_set1_epi16(0x3f80);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, nan_bits), nan_bits);
    const __m256i with_nans =
        _mm256_or_si256(halves, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    const __m256 factor = _mm256_set1_ps(256);
    return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(with_nans)), factor),
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(with_nans, 1)), factor)};
}

template <class Float8>
inline PairRow load_float8_pairs(const Float8* row) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    return {widen_float8(_mm256_slli_epi16(pairs, 8), Float8()), widen_float8(pairs, Float8())};
}

#endif

inline void store_items(e4m3* p, F32 v) { store_float8(p, v); }
inline void store_items(e5m2* p, F32 v) { store_float8(p, v); }
inline PairRow load_pairs(const e4m3* row) { return load_float8_pairs(row); }
inline PairRow load_pairs(const e5m2* row) { return load_float8_pairs(row); }

}  // namespace TACO_ISA
