// Elementwise kernels over rows that the threads of a region share.
#pragma once

#include "elementwise/elementwise_args.h"
#include "elementwise/norm.h"
#include "elementwise/rotary.h"
#include "isa/vector_math.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

inline void norm_rows(Thread& thread, const NormRows& norm) {
    const int64_t bytes =
        padded_k(norm.type, norm.size) * (norm.type == DType::f32    ? sizeof(float)
                                          : norm.type == DType::bf16 ? sizeof(Bf16Operand)
                                                                     : sizeof(Int8Operand));
    thread.share(norm.count, 1, [&](int64_t row, int64_t) {
        norm_row_encoded(norm.kind, norm.rows + row * norm.size, norm.size, norm.weight, norm.bias,
                         norm.eps, norm.type, static_cast<char*>(norm.out) + row * bytes,
                         norm.scales + row);
    });
}

inline void rotate_rows(Thread& thread, const RotaryRows& rotary) {
    thread.share(rotary.count, 1, [&](int64_t row, int64_t) {
        rotate_row(rotary.rotation, rotary.rows + row * rotary.stride, rotary.positions + row,
                   rotary.count);
    });
}

inline F32 apply(Function function, F32 x) {
    switch (function) {
        case Function::exp: return exp(x);
        case Function::tanh: return tanh(x);
        case Function::erf: return erf(x);
        default: return activate(x, Activation(int32_t(function)));
    }
}

inline void map(Thread& thread, const Mapped& mapped) {
    constexpr int64_t grain = 4096;
    thread.share(mapped.count, grain, [&](int64_t begin, int64_t end) {
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) {
            store(mapped.out + i, apply(mapped.function, load(mapped.numbers + i)));
        }
        if (i < end) {
            const F32 last = load_first(mapped.numbers + i, end - i);
            store_first(mapped.out + i, apply(mapped.function, last), end - i);
        }
    });
}

}  // namespace TACO_ISA
