// Elementwise kernels over rows that the threads of a region share.
#pragma once

#include "elementwise/activation.h"
#include "elementwise/elementwise_args.h"
#include "elementwise/norm.h"
#include "elementwise/rotary.h"
#include "elementwise/row_ops.h"
#include "isa/vector_math.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

inline void norm_rows(Thread& thread, const NormRows& norm) {
    thread.share(norm.count, 1, [&](int64_t row, int64_t) {
        const float* x = norm.rows + row * norm.stride;
        char* out =
            static_cast<char*>(norm.out) + operand_offset(norm.type, row, norm.out_stride, 0);
        if (norm.num_groups == 1) {
            norm_row_encoded(norm.kind, x, norm.size, norm.weight, norm.bias, norm.eps, norm.type,
                             out, norm.scales + row);
        } else {
            norm_groups_row(norm.kind, x, norm.num_groups, norm.size, norm.weight, norm.bias,
                            norm.weight_stride, norm.eps, reinterpret_cast<float*>(out));
        }
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
        case Function::exp2: return exp2(x);
        case Function::exp2_for_bf16: return exp2_for_bf16(x);
        case Function::silu_for_bf16: return silu_for_bf16(x);
        case Function::softplus: return softplus(x);
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

inline void activate_rows(Thread& thread, const ActivatedRows& rows) {
    thread.share(rows.count, 1, [&](int64_t row, int64_t) {
        const float* x = rows.rows + row * rows.stride;
        float* out = rows.out + row * rows.out_stride;
        if (rows.up) {
            gate_up_row(rows.activation, rows.alpha, rows.limit, x, rows.up + row * rows.stride,
                        rows.size, out);
        } else {
            activate_row(rows.activation, x, rows.size, out);
        }
    });
}

inline void apply_row_op(Thread& thread, const RowOp& op) {
    thread.share(op.count, 1, [&](int64_t row, int64_t) { run_row_op(op, row); });
}

}  // namespace TACO_ISA
