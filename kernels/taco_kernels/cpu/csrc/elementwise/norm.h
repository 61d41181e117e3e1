// RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016) of one row, computed in float.
#pragma once

#include <cmath>

#include "isa/vector_math.h"
#include "matmul/encode.h"

namespace TACO_ISA {

// Sum of term(vector) over a row, always in 64 partial sums.
template <class Term>
inline float sum_terms(const float* row, int64_t size, Term term) {
    F32 sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES) {
        for (int part = 0; part < 4; ++part) {
            sums[part] = add(sums[part], term(load(row + i + part * LANES)));
        }
    }
    for (; i + LANES <= size; i += LANES) sums[0] = add(sums[0], term(load(row + i)));
    float sum = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
    if (i < size) {
        float last[LANES];
        store(last, term(load_first(row + i, size - i)));
        for (int64_t lane = 0; lane < size - i; ++lane) sum += last[lane];
    }
    return sum;
}

// A normalized row, sixteen numbers at a time: (x - mean) * scale * weight + bias. weight (1) and
// bias (0) may be null.
class NormedRow {
public:
    NormedRow(NormKind kind, const float* row, int64_t size, const float* weight, const float* bias,
              float eps)
        : row_(row), weight_(weight), bias_(bias), size_(size) {
        float mean = 0;
        if (kind == NormKind::layer) {
            mean = sum_terms(row, size, [](F32 x) { return x; }) / float(size);
        }
        mean_ = set1(mean);
        const float squares = sum_terms(row, size, [this](F32 x) {
            const F32 centered = sub(x, mean_);
            return mul(centered, centered);
        });
        scale_ = set1(1.0f / std::sqrt(squares / float(size) + eps));
    }

    // Calls body(first column, F32, number of columns); the last vector may hold fewer than
    // sixteen, followed by zeros.
    template <class Body>
    void each(Body body) const {
        int64_t i = 0;
        for (; i + LANES <= size_; i += LANES) {
            const F32 bias = bias_ ? load(bias_ + i) : zero();
            const F32 weight = weight_ ? load(weight_ + i) : set1(1);
            body(i, value(load(row_ + i), weight, bias), int64_t(LANES));
        }
        if (const int64_t rest = size_ - i) {
            const F32 bias = bias_ ? load_first(bias_ + i, rest) : zero();
            // Zeros past the last column: they make zeros of the row's mean.
            static constexpr float ones[LANES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
            const F32 weight = load_first(weight_ ? weight_ + i : ones, rest);
            body(i, value(load_first(row_ + i, rest), weight, bias), rest);
        }
    }

private:
    F32 value(F32 x, F32 weight, F32 bias) const {
        return fma(mul(sub(x, mean_), scale_), weight, bias);
    }

    const float *row_, *weight_, *bias_;
    int64_t size_;
    F32 mean_, scale_;
};

inline void store_norm(const NormedRow& norm, float* out) {
    norm.each([=](int64_t i, F32 v, int64_t count) { store_lanes(out + i, v, count); });
}

// Writes the norm of a row as floats; `out` may be the row itself.
inline void norm_row(NormKind kind, const float* row, int64_t size, const float* weight,
                     const float* bias, float eps, float* out) {
    store_norm(NormedRow(kind, row, size, weight, bias, eps), out);
}

// Writes the norms of adjacent groups of `size` columns, such as heads, as floats; `out` may be the
// row itself. weight and bias belong to all groups, or to the first one, with the next group's
// `weight_stride` floats behind.
inline void norm_groups_row(NormKind kind, const float* row, int64_t num_groups, int64_t size,
                            const float* weight, const float* bias, int64_t weight_stride,
                            float eps, float* out) {
    for (int64_t group = 0; group < num_groups; ++group) {
        const int64_t first = group * weight_stride;
        norm_row(kind, row + group * size, size, weight ? weight + first : nullptr,
                 bias ? bias + first : nullptr, eps, out + group * size);
    }
}

// Writes the norm of a row as bf16 operands, the first of them at `out`.
inline void encode_bf16_norm(const NormedRow& norm, int64_t size, Bf16Operand* out) {
    norm.each([=](int64_t i, F32 v, int64_t) { store_bf16_operand(operand_at(out, i), v); });
    for (int64_t i = round_up(size, LANES); i < padded_k(DType::bf16, size); i += LANES) {
        store_bf16_operand(operand_at(out, i), zero());
    }
}

// Writes the norm of a row as padded_k(type, size) operands of a matrix of `type`, and a scale for
// int8, whose operands have an order.
inline void norm_row_encoded(NormKind kind, const float* row, int64_t size, const float* weight,
                             const float* bias, float eps, DType type, void* out, RowScale* scale,
                             const ColumnOrder& order = {}) {
    const NormedRow norm(kind, row, size, weight, bias, eps);
    switch (type) {
        case DType::f32: store_norm(norm, static_cast<float*>(out)); break;
        case DType::bf16: encode_bf16_norm(norm, size, static_cast<Bf16Operand*>(out)); break;
        // Its values are computed twice, which is cheaper than storing a row of floats.
        case DType::i8:
            encode_i8_row(norm, size, static_cast<Int8Operand*>(out), *scale, order);
            break;
    }
}

}  // namespace TACO_ISA
