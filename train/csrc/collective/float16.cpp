#include "collective/float16.h"

#include <immintrin.h>

#include <cstring>

namespace taco::collective {
namespace {

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

float widen(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1f) {  // infinity, or a NaN made quiet as processors do
        return float_of(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
    }
    if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
    // Subnormal: mantissa * 2^-24, which float32 holds exactly.
    return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
}

uint16_t narrow(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal or zero
        // Adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
        return sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u);
    }
    const uint32_t odd = (magnitude >> 13) & 1;
    return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

bool has_f16c() {
    static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    return has;
}

__attribute__((target("avx2,f16c"))) void widen_f16c(float* out, const uint16_t* in, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
    }
    for (; i < count; ++i) out[i] = widen(in[i]);
}

__attribute__((target("avx2,f16c"))) void narrow_f16c(uint16_t* out, const float* in,
                                                      size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
    }
    for (; i < count; ++i) out[i] = narrow(in[i]);
}

}  // namespace

void portable_float32_from_float16(float* out, const uint16_t* in, size_t count) {
    for (size_t i = 0; i < count; ++i) out[i] = widen(in[i]);
}

void portable_float16_from_float32(uint16_t* out, const float* in, size_t count) {
    for (size_t i = 0; i < count; ++i) out[i] = narrow(in[i]);
}

void float32_from_float16(float* out, const uint16_t* in, size_t count) {
    has_f16c() ? widen_f16c(out, in, count) : portable_float32_from_float16(out, in, count);
}

void float16_from_float32(uint16_t* out, const float* in, size_t count) {
    has_f16c() ? narrow_f16c(out, in, count) : portable_float16_from_float32(out, in, count);
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void float32_from_bfloat16(
    float* out, const uint16_t* in, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(in[i]) << 16;
        std::memcpy(out + i, &bits, sizeof bits);
    }
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void bfloat16_from_float32(
    uint16_t* out, const float* in, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, in + i, sizeof bits);
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
        const uint32_t quiet = (bits >> 16) | 0x40u;
        out[i] = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    }
}

}  // namespace taco::collective
