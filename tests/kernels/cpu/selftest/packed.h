// A weight matrix for the kernels, and the same numbers for plain C++.
#pragma once

#include "matmul/matrix.h"
#include "selftest.h"

inline const char* name_of(DType type) {
    return type == DType::f32 ? "f32" : type == DType::bf16 ? "bf16" : "int8";
}

// Bytes of `count` rows of k operands of a matrix of `type`.
int64_t operand_memory(const TacoPool* pool, DType type, int64_t count, int64_t k);

// What multiplying with a matrix of `type` makes of a row of activations.
Doubles as_operands(DType type, const float* row, int64_t k);

class Packed {
public:
    // W of normal numbers, [n, k]; a gated pair is gate [n / 2, k] and then up.
    Packed(TacoPool* pool, Random& random, DType type, int64_t n, int64_t k, bool has_bias = true,
           bool is_gated = false);

    const Matrix& matrix() const { return matrix_; }
    int64_t n() const { return matrix_.n; }
    int64_t k() const { return matrix_.k; }

    // x W^T + bias, of operands as `as_operands` gives them.
    Doubles product(const Doubles& row) const;

    // The layout of matrix.h, number by number.
    bool is_packed_right() const;

private:
    int64_t packed_column(int64_t row) const;
    double packed_number(int64_t column, int64_t k) const;

    bool is_gated_;
    Doubles weights_, bias_;       // [n, k] as the kernels keep them, [n]
    Floats scales_, packed_bias_;  // [padded n]
    std::vector<int32_t> column_sums_;
    Bytes data_;
    Matrix matrix_;
};
