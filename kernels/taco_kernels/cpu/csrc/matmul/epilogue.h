// The epilogue of a product: scales, bias, activation, and the store of a block's sums.
#pragma once

#include "isa/partial_vectors.h"
#include "isa/vector_math.h"
#include "matmul/block.h"
#include "matmul/panel_steps.h"

namespace TACO_ISA {

static_assert(INT8_OFFSET == 0 || INT8_OFFSET == 1 << 7);

// The products of a row's outliers with a panel's columns, in units of OUTLIER_STEP. Exact: at most
// MAX_OUTLIERS products of whole numbers up to 128.
inline F32 outlier_sums(const RowScale& scale, const Matrix& matrix, int64_t panel) {
    const auto* weights = static_cast<const int8_t*>(matrix.panel(panel));
    constexpr int64_t GROUP = k_group(DType::i8);
    F32 sums = zero();
    for (int32_t i = 0; i < scale.num_outliers; ++i) {
        const Outlier& outlier = scale.outliers[i];
        const F32 columns =
            load_byte_of_quads(weights + outlier.k / GROUP * STEP_BYTES, outlier.k % GROUP);
        sums = fma(set1(outlier.high), columns, sums);
    }
    return sums;
}

// The sums of a block as floats, sixteen columns at a time, with scales and bias applied.
class BlockValues {
public:
    BlockValues(const Matrix& matrix, const RowScale* row_scales, const Block& block,
                const void* sums)
        : matrix_(matrix), row_scales_(row_scales), block_(block), sums_(sums) {}

    // Row and panel are counted from the first of the rows and of the matrix.
    F32 at(int64_t row, int64_t panel) const {
        const int64_t column = panel * PANEL;
        const int64_t index =
            (panel - block_.panels.begin) * block_.rows.size() + row - block_.rows.begin;
        F32 value;
        if (matrix_.type == DType::i8) {
            I32 sum = load_i32(static_cast<const int32_t*>(sums_) + index * PANEL);
            if constexpr (INT8_OFFSET != 0) {
                sum = sub(sum, shift_left<7>(load_i32(matrix_.column_sums + column)));
            }
            value = to_float(sum);
            const RowScale& row_scale = row_scales_[row];
            if (row_scale.num_outliers) {
                const F32 high = outlier_sums(row_scale, matrix_, panel);
                value = fma(high, set1(OUTLIER_STEP), value);
            }
            value = mul(value, mul(set1(row_scale.scale), load(matrix_.scales + column)));
        } else {
            value = load(static_cast<const float*>(sums_) + index * PANEL);
        }
        return matrix_.bias ? add(value, load(matrix_.bias + column)) : value;
    }

private:
    const Matrix& matrix_;
    const RowScale* row_scales_;
    const Block& block_;
    const void* sums_;
};

// Writes the columns of one panel; the matrix's last panel may have fewer than sixteen.
inline void write_columns(const Product& product, int64_t row, int64_t column, int64_t columns,
                          F32 value) {
    const int64_t count = std::min(PANEL, columns - column), at = row * product.out_stride + column;
    if (!product.out_is_operand) {
        store_lanes(static_cast<float*>(product.out) + at, value, count);
    } else if (count == PANEL) {
        store_bf16_operand(static_cast<Bf16Operand*>(product.out) + at, value);
    } else {
        Bf16Operand operands[LANES];
        store_bf16_operand(operands, value);
        std::copy_n(operands, count, static_cast<Bf16Operand*>(product.out) + at);
    }
}

// Writes gate(a, b) for the two halves a and b of a gated pair.
template <class Gate>
inline void finish_gated_block(const Product& product, const Block& block, const void* sums,
                               Gate gate) {
    const BlockValues values(product.matrix, product.rows.scales, block, sums);
    for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
        for (int64_t panel = block.panels.begin; panel < block.panels.end; panel += 2) {
            write_columns(product, row, panel / 2 * PANEL, product.matrix.n / 2,
                          gate(values.at(row, panel), values.at(row, panel + 1)));
        }
    }
}

inline void finish_block(const Product& product, const Block& block, const void* sums) {
    if (product.epilogue == Epilogue::gate_mul) {
        return finish_gated_block(product, block, sums, [&](F32 gate, F32 up) {
            return activate_gated(gate, up, product.activation, product.alpha, product.limit);
        });
    }
    const Matrix& matrix = product.matrix;
    const BlockValues values(matrix, product.rows.scales, block, sums);
    for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
        for (int64_t panel = block.panels.begin; panel < block.panels.end; ++panel) {
            const int64_t column = panel * PANEL;
            F32 value = values.at(row, panel);
            if (product.epilogue == Epilogue::store) {
                value = activate(value, product.activation);
            } else {
                const float* out = static_cast<const float*>(product.out);
                const F32 sum = load_lanes(out + row * product.out_stride + column,
                                           std::min(PANEL, matrix.n - column));
                value = fma(value, set1(product.factor), sum);
            }
            write_columns(product, row, column, matrix.n, value);
        }
    }
}

}  // namespace TACO_ISA
