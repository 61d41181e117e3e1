// Sums, products, factors, caps, gates and a learned activation of one row, in place.
#pragma once

#include "elementwise/elementwise_args.h"
#include "elementwise/map_row.h"
#include "isa/vector_math.h"

namespace TACO_ISA {

// x += factor * y
inline void add_row(float* x, const float* y, int64_t size, float factor = 1) {
    map_row(size, x, [=](int64_t i, int64_t count) {
        return fma(load_lanes(y + i, count), set1(factor), load_lanes(x + i, count));
    });
}

// x *= y
inline void multiply_row(float* x, const float* y, int64_t size) {
    map_row(size, x, [=](int64_t i, int64_t count) {
        return mul(load_lanes(x + i, count), load_lanes(y + i, count));
    });
}

inline void scale_row(float* x, int64_t size, float factor) {
    map_row(size, x,
            [=](int64_t i, int64_t count) { return mul(load_lanes(x + i, count), set1(factor)); });
}

// x = cap * tanh(x / cap)
inline void cap_row(float* x, int64_t size, float cap) {
    map_row(size, x, [=](int64_t i, int64_t count) {
        return mul(set1(cap), tanh(div(load_lanes(x + i, count), set1(cap))));
    });
}

// x limited to [-limit, limit]; NaN stays NaN.
inline void clip_row(float* x, int64_t size, float limit) {
    map_row(size, x,
            [=](int64_t i, int64_t count) { return clamp(load_lanes(x + i, count), limit); });
}

// x = xIELU(x) (Huang and Schlag 2024). The weight is positive, negative, beta, eps. Above 0 xIELU
// is positive * x^2 + beta * x, else (beta + negative) * (exp(min(x, eps)) - 1 - x) + beta * x.
inline void xielu_row(float* x, int64_t size, const float* weight) {
    const float positive = weight[0], beta = weight[2], negative = beta + weight[1];
    const float eps = weight[3];
    map_row(size, x, [=](int64_t i, int64_t count) {
        const F32 number = load_lanes(x + i, count);
        const F32 power = sub(exp(min(set1(eps), number)), set1(1));
        const F32 below = mul(set1(negative), sub(power, number));
        const F32 above = mul(mul(set1(positive), number), number);
        return fma(set1(beta), number, select_less(zero(), number, above, below));
    });
}

// x *= sigmoid(gate); gate has `gate_size` numbers, one for each of x or one for all.
inline void gate_row(float* x, const float* gate, int64_t size, int64_t gate_size) {
    map_row(size, x, [=](int64_t i, int64_t count) {
        const F32 g = gate_size == 1 ? set1(*gate) : load_lanes(gate + i, count);
        return mul(load_lanes(x + i, count), sigmoid(g));
    });
}

inline void run_row_op(const RowOp& op, int64_t row) {
    float* x = op.rows + row * op.stride;
    const float* y = op.other + row * op.other_stride;
    switch (op.kind) {
        case RowOpKind::add: return add_row(x, y, op.size, op.number);
        case RowOpKind::scale: return scale_row(x, op.size, op.number);
        case RowOpKind::cap: return cap_row(x, op.size, op.number);
        case RowOpKind::clip: return clip_row(x, op.size, op.number);
        case RowOpKind::gate: return gate_row(x, y, op.size, op.other_size);
        case RowOpKind::xielu: return xielu_row(x, op.size, y);
        case RowOpKind::multiply: return multiply_row(x, y, op.size);
    }
}

}  // namespace TACO_ISA
