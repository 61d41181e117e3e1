// Number types and shape constants that all kernels share.
#pragma once

#include <cstdint>
#include <cstring>

// Namespace of the instruction set that this file is compiled for. Each kernel is compiled once per
// set, and the linker must not mix up the copies.
#ifndef TACO_ISA
#define TACO_ISA taco_portable
#endif

using bf16 = uint16_t;

inline float from_bf16(bf16 x) {
    const uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

// Rounds to nearest even; a NaN stays one.
inline bf16 to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return bf16((bits | 0x400000) >> 16);
    return bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// 8-bit floats: a sign, 4 or 5 bits of exponent, 3 or 2 of mantissa (Micikevicius et al. 2022, "FP8
// Formats for Deep Learning"; torch.float8_e4m3fn and float8_e5m2).
struct e4m3 {
    uint8_t bits;
};
struct e5m2 {
    uint8_t bits;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Columns of a panel: one AMX tile row, one AVX-512 register of sums.
constexpr int64_t PANEL = 16;

// Element type of a matrix. The values are part of the C ABI.
enum class DType : int32_t { f32 = 0, bf16 = 1, i8 = 2 };

// Element type of a checkpoint's tensor.
enum class TableType : int32_t { f32 = 0, bf16 = 1, f16 = 2 };

// Consecutive k that one instruction consumes: 1 float, 2 bf16, 4 int8.
constexpr int64_t k_group(DType type) {
    return type == DType::f32 ? 1 : type == DType::bf16 ? 2 : 4;
}
constexpr int64_t item_bytes(DType type) {
    return type == DType::f32 ? 4 : type == DType::bf16 ? 2 : 1;
}
// k padded with zeros to whole AMX tiles: 32 bf16 or 64 int8 (64 bytes per row either way).
constexpr int64_t padded_k(DType type, int64_t k) {
    return type == DType::f32 ? k : round_up(k, 64 / item_bytes(type));
}

enum class Activation : int32_t {
    none = 0,
    relu = 1,
    gelu = 2,
    gelu_tanh = 3,
    silu = 4,
    relu2 = 5,
    quick_gelu = 6,
    swiglu_clipped = 7,  // gated only
};

enum class NormKind : int32_t { rms = 0, layer = 1 };

// Which numbers of a head are rotated together: (i, i + rotary_dim / 2) or (2i, 2i + 1).
enum class RotaryStyle : int32_t { half = 0, interleaved = 1 };
