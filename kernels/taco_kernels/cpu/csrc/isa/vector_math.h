// Vector math: exp, tanh, erf and the activations of sixteen floats at once.
//
// The polynomials are our own minimax fits (Lawson's iteration in 50-digit arithmetic, then rounded
// to float). tests/kernels/cpu/test_vector_math.py checks the error of each function in ulp.
#pragma once

#include <limits>

#include "isa/vec.h"
#include "runtime/types.h"

namespace TACO_ISA {

constexpr float LOG2_E = 1.44269504f;

inline F32 negate(F32 x) { return sub(zero(), x); }
// NaN stays NaN.
inline F32 abs(F32 x) { return as_float(bit_and(as_bits(x), set1_i32(0x7fffffff))); }

// Horner's scheme, coefficients from the highest power down.
template <class... Rest>
inline F32 polynomial(F32 x, float highest, Rest... rest) {
    F32 sum = set1(highest);
    ((sum = fma(sum, x, set1(rest))), ...);
    return sum;
}

// exp for arguments that are at most 88, where it cannot overflow.
inline F32 exp_bounded(F32 x) {
    // ln 2 in two parts (Cody and Waite); n * the first is exact.
    constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    // The least argument with a normal result, and the next float below it.
    constexpr float least = -87.3365402f, underflow = -87.3365479f;

    // Instructions whose results underflow take a hundred times as long. NaN stays NaN.
    const F32 limited = max(set1(least), x);
    const F32 n = round_to_even(mul(limited, set1(LOG2_E)));
    const F32 r = fma(n, set1(-ln2_low), fma(n, set1(-ln2_high), limited));
    const F32 tail = polynomial(r, 1.38144311e-3f, 8.36879667e-3f, 4.16683964e-2f, 1.66665196e-1f,
                                4.99999940e-1f);
    const F32 fraction = add(fma(mul(r, r), tail, r), set1(1));
    return select_less(x, set1(underflow), zero(), mul_pow2(fraction, n));
}

// Within 1 ulp. Results below the least normal number become 0.
inline F32 exp(F32 x) {
    constexpr float overflow = 88.7228394f;
    return select_less(set1(overflow), x, set1(std::numeric_limits<float>::infinity()),
                       exp_bounded(x));
}

// 2^x for x up to 126: relative error below 2e-7, exactly 1 at 0. Results below the least normal
// number become 0, that number or one between.
inline F32 exp2(F32 x) {
    x = limit_exponent(x);
    const F32 power = polynomial(fraction(x), 1.86716e-3f, 9.01696e-3f, 5.579996e-2f, 2.4016444e-1f,
                                 6.9315131e-1f, 1);
    return mul_floor_pow2(power, x);
}

// Likewise with a relative error below 9e-5: for results that are rounded to bf16 (2e-3).
inline F32 exp2_for_bf16(F32 x) {
    x = limit_exponent(x);
    const F32 power = polynomial(fraction(x), 7.706757e-2f, 2.2764443e-1f, 6.9511692e-1f, 1);
    return mul_floor_pow2(power, x);
}

// Within 2 ulp.
inline F32 tanh(F32 x) {
    const F32 size = abs(x), square = mul(x, x);
    const F32 tail = polynomial(square, -5.71703259e-3f, 2.06505749e-2f, -5.37434928e-2f,
                                1.33314908e-1f, -3.33332837e-1f);
    const F32 small = fma(mul(x, square), tail, x);
    const F32 e = exp(add(size, size));
    const F32 large = sub(set1(1), div(set1(2), add(e, set1(1))));
    const F32 signed_large = select_less(x, zero(), negate(large), large);
    return select_less(size, set1(0.625f), small, signed_large);
}

// Within 2 ulp.
inline F32 erf(F32 x) {
    const F32 square = mul(x, x);
    const F32 tail = polynomial(square, 8.18509070e-5f, -8.09770310e-4f, 5.19695226e-3f,
                                -2.68577058e-2f, 1.12836637e-1f, -3.76126319e-1f, 1.28379166e-1f);
    const F32 small = fma(x, tail, x);
    // The polynomial is log(1 - erf); from 4 on erf rounds to 1. The order keeps a NaN.
    const F32 size = min(set1(4), abs(x));
    const F32 log_rest =
        polynomial(size, 1.91505373e-4f, -2.99955229e-3f, 2.20520422e-2f, -1.03566982e-1f,
                   -6.37599945e-1f, -1.12742615f, -2.56431842e-4f);
    const F32 large = sub(set1(1), exp(log_rest));
    const F32 signed_large = select_less(x, zero(), negate(large), large);
    return select_less(abs(x), set1(0.95f), small, signed_large);
}

inline F32 relu(F32 x) { return max(zero(), x); }

// Squared ReLU (Primer, So et al. 2021).
inline F32 relu2(F32 x) {
    const F32 positive = relu(x);
    return mul(positive, positive);
}

inline F32 sigmoid(F32 x) { return div(set1(1), add(set1(1), exp(negate(x)))); }

// x limited to [-limit, limit]; NaN stays NaN.
inline F32 clamp(F32 x, float limit) { return max(set1(-limit), min(set1(limit), x)); }

// ln(1 + exp(x)): relative error below 3e-7 for x from -86 on, 0 far below.
inline F32 softplus(F32 x) {
    const F32 power = exp_bounded(negate(abs(x)));  // from 0 to 1
    const F32 tail = polynomial(power, -3.17605701e-3f, 1.95425283e-2f, -5.63736148e-2f,
                                1.05436236e-1f, -1.52696669e-1f, 1.96632743e-1f, -2.49516159e-1f,
                                3.33297104e-1f, -4.99998927e-1f, 1);
    return fma(power, tail, relu(x));
}

inline F32 silu(F32 x) { return div(x, add(set1(1), exp(negate(x)))); }

// 1 / x for x from 2^-125 to 2^125: relative error below 7e-6. Two steps of Newton after a guess
// that errs by 5%, from a difference of bits, which negates the exponent. A division takes longer,
// and the instructions that guess better differ between makers of CPUs.
inline F32 reciprocal_for_bf16(F32 x) {
    F32 guess = sub_bits(0x7ef311c7, x);
    for (int step = 0; step < 2; ++step) {
        guess = mul(guess, fma(negate(x), guess, set1(2)));
    }
    return guess;
}

// silu with a relative error below 1.1e-5 for x from -83 on, and a number near 0 below, down to
// -1e30: for products of numbers that were rounded to bf16 (2e-3) or fewer bits.
inline F32 silu_for_bf16(F32 x) {
    // 2^n is exp(-x), limited so that the reciprocal is a normal number. NaN stays NaN.
    const F32 n = limit_exponent(min(set1(120), mul(x, set1(-LOG2_E))));
    const F32 fractional =
        polynomial(fraction(n), 1.3426686e-2f, 5.2242473e-2f, 2.4128021e-1f, 6.9304484e-1f, 1);
    return mul(x, reciprocal_for_bf16(add(set1(1), mul_floor_pow2(fractional, n))));
}

// x * sigmoid(slope * x); of slope 1.702 an approximation of gelu (Hendrycks and Gimpel 2016).
inline F32 swish(F32 x, float slope) { return div(x, add(set1(1), exp(mul(set1(-slope), x)))); }

inline F32 gelu(F32 x) {
    constexpr float sqrt_half = 0.707106781f;
    return mul(mul(set1(0.5f), x), add(set1(1), erf(mul(x, set1(sqrt_half)))));
}

// Hendrycks and Gimpel (2016), section 2, with (1 + tanh u) / 2 = sigmoid(2 u).
inline F32 gelu_tanh(F32 x) {
    constexpr float twice_sqrt_2_pi = 1.59576912f, cubic = 0.044715f;
    const F32 cube = mul(mul(x, x), x);
    const F32 u = mul(set1(twice_sqrt_2_pi), fma(set1(cubic), cube, x));
    return div(x, add(set1(1), exp(negate(u))));
}

inline F32 activate(F32 x, Activation activation) {
    switch (activation) {
        case Activation::none: return x;
        case Activation::relu: return relu(x);
        case Activation::gelu: return gelu(x);
        case Activation::gelu_tanh: return gelu_tanh(x);
        case Activation::silu: return silu(x);
        case Activation::relu2: return relu2(x);
        case Activation::quick_gelu: return swish(x, 1.702f);
        case Activation::swiglu_clipped: break;  // only with `activate_gated`
    }
    return x;
}

// The activation of gpt-oss, and of Phi-3-small ("gegelu"): gate and up are limited, and up is
// shifted by 1.
inline F32 swiglu_clipped(F32 gate, F32 up, float alpha, float limit) {
    return mul(swish(min(set1(limit), gate), alpha), add(clamp(up, limit), set1(1)));
}

// One number from the two of a gated pair: act(gate) * up. alpha and limit: of swiglu_clipped.
inline F32 activate_gated(F32 gate, F32 up, Activation activation, float alpha, float limit) {
    if (activation == Activation::swiglu_clipped) return swiglu_clipped(gate, up, alpha, limit);
    return mul(activate(gate, activation), up);
}

}  // namespace TACO_ISA
