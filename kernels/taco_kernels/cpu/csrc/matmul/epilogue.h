// The epilogue of a product: scales, bias, activation, and the store of sums.
#pragma once

#include "isa/partial_vectors.h"
#include "isa/vector_math.h"
#include "matmul/adapter_sums.h"
#include "matmul/block.h"
#include "matmul/codes/grouped_int8.h"
#include "matmul/panel_steps.h"

namespace TACO_ISA {

static_assert(INT8_OFFSET == 0 || INT8_OFFSET == 1 << 7);

// Adds the products of some outliers of a row with some adjacent int8 panels to the row's sums.
// Exact: they are whole numbers. `sums`: of the first panel, `stride` from one panel to the next.
template <int PANELS>
inline void add_outliers(const Outlier* outliers, const OutlierRange& range, const int8_t* panel,
                         int64_t panel_bytes, int32_t* sums, int64_t stride) {
    I32 highs[2][PANELS];  // of both signs
    const auto sum_up = [&](I32(&sum)[PANELS], int64_t begin, int64_t end) {
#pragma GCC unroll 8
        for (int p = 0; p < PANELS; ++p) sum[p] = zero_i32();
        for (int64_t i = begin; i < end; ++i) {
            const Outlier& outlier = outliers[i];
            const int8_t* quads = panel + uint32_t(outlier.k) / k_group(DType::i8) * STEP_BYTES;
#pragma GCC unroll 8
            for (int p = 0; p < PANELS; ++p) {
                sum[p] = dot_unsigned_quad(sum[p], quads + p * panel_bytes, outlier.quad);
                keep(sum[p]);
            }
        }
    };
    sum_up(highs[0], range.positive_begin, range.positive_end);
    sum_up(highs[1], range.negative_begin, range.negative_end);
    static_assert(OUTLIER_STEP == (1 << 8) - (1 << 1));
#pragma GCC unroll 8
    for (int p = 0; p < PANELS; ++p) {
        const I32 high = sub(highs[0][p], highs[1][p]);
        const I32 product = sub(shift_left<8>(high), shift_left<1>(high));
        store_i32(sums + p * stride, add(load_i32(sums + p * stride), product));
    }
}

// All outliers of a row, and any number of panels. Never inlined: rows without outliers do not pay
// for its registers.
__attribute__((noinline)) inline void add_outliers(const RowScale& scale, const int8_t* panel,
                                                   int64_t panel_bytes, int64_t num_panels,
                                                   int32_t* sums, int64_t stride) {
    const auto add_next = [&](auto panels) {
        for (; num_panels >= panels; num_panels -= panels) {
            add_outliers<panels>(scale.outliers, scale.all_outliers(), panel, panel_bytes, sums,
                                 stride);
            panel += panels * panel_bytes;
            sums += panels * stride;
        }
    };
    // As many as have two sums each in registers.
    if constexpr (MAX_ACCUMULATORS > 16) add_next(std::integral_constant<int, 8>());
    add_next(std::integral_constant<int, 2>());
    add_next(std::integral_constant<int, 1>());
}

// The sums of a block as floats, sixteen columns at a time, with scales and bias applied. The
// outliers of a row must have been added before its values are read. Copies what it needs, so that
// these stay in registers while a tile product writes memory.
class BlockValues {
public:
    BlockValues() = default;
    BlockValues(const Matrix& matrix, const RowScale* row_scales, const Block& block, void* sums)
        : is_int8_(matrix.type == DType::i8),
          first_row_(block.rows.begin),
          first_panel_(block.panels.begin),
          sums_stride_(block.sums_stride()),
          sums_(sums),
          row_scales_(row_scales),
          matrix_(&matrix),
          data_(static_cast<const int8_t*>(matrix.data)),
          panel_bytes_(matrix.panel_bytes()),
          scales_(matrix.scales),
          column_sums_(matrix.column_sums),
          bias_(matrix.bias) {}

    // Called once for each row. Row and panels are counted from the first of the rows and of the
    // matrix.
    void add_outliers(int64_t row, Range panels) const {
        if (!is_int8_ || !scales_ || row_scales_[row].num_outliers == 0) return;
        TACO_ISA::add_outliers(
            row_scales_[row], data_ + panels.begin * panel_bytes_, panel_bytes_, panels.size(),
            static_cast<int32_t*>(sums_) + index_of(row, panels.begin), sums_stride_);
    }

    F32 at(int64_t row, int64_t panel) const {
        const int64_t column = panel * PANEL;
        const int64_t index = index_of(row, panel);
        F32 value;
        if (is_int8_) {
            const RowScale& row_scale = row_scales_[row];
            F32 scale = set1(row_scale.scale);
            if (scales_) {
                I32 sum = load_i32(static_cast<const int32_t*>(sums_) + index);
                if constexpr (INT8_OFFSET != 0) {
                    sum = sub(sum, shift_left<7>(load_i32(column_sums_ + column)));
                }
                value = to_float(sum);
                scale = mul(scale, load(scales_ + column));
            } else {  // codes, whose sums have the scales of groups
                value = load(static_cast<const float*>(sums_) + index);
                if (row_scale.num_outliers) {
                    const CodePart& part = matrix_->part_of(panel);
                    value = fma(grouped_outlier_sums(row_scale, part, panel), set1(OUTLIER_STEP),
                                value);
                }
            }
            value = mul(value, scale);
        } else {
            value = load(static_cast<const float*>(sums_) + index);
        }
        return bias_ ? add(value, load(bias_ + column)) : value;
    }

private:
    int64_t index_of(int64_t row, int64_t panel) const {
        return (panel - first_panel_) * sums_stride_ + (row - first_row_) * PANEL;
    }

    bool is_int8_ = false;
    int64_t first_row_ = 0, first_panel_ = 0, sums_stride_ = 0;
    void* sums_ = nullptr;
    const RowScale* row_scales_ = nullptr;
    const Matrix* matrix_ = nullptr;
    const int8_t* data_ = nullptr;
    int64_t panel_bytes_ = 0;
    const float* scales_ = nullptr;
    const int32_t* column_sums_ = nullptr;
    const float* bias_ = nullptr;
};

// What an epilogue does with a row. The light ones take so few instructions that they cost no time
// beside the tile products of other rows. The other kind gives the same bits for the same product.
enum class RowEpilogue { store, add, gate_silu, gate_silu_for_bf16, other };

constexpr bool is_gate_silu(RowEpilogue kind) {
    return kind == RowEpilogue::gate_silu || kind == RowEpilogue::gate_silu_for_bf16;
}

// The activation of such a kind.
template <RowEpilogue KIND>
inline F32 silu_of(F32 gate) {
    static_assert(is_gate_silu(KIND));
    return KIND == RowEpilogue::gate_silu ? silu(gate) : silu_for_bf16(gate);
}

inline bool rounds_silu(const Product& product) {
    return product.activation == Activation::silu && product.matrix.type != DType::f32;
}

inline RowEpilogue row_epilogue(const Product& product) {
    if (product.adapters.places) return RowEpilogue::other;
    const bool is_plain = product.activation == Activation::none;
    switch (product.epilogue) {
        case Epilogue::store: return is_plain ? RowEpilogue::store : RowEpilogue::other;
        case Epilogue::add: return RowEpilogue::add;
        case Epilogue::gate_mul: break;
    }
    if (product.activation != Activation::silu) return RowEpilogue::other;
    return rounds_silu(product) ? RowEpilogue::gate_silu_for_bf16 : RowEpilogue::gate_silu;
}

// Writes the results of a block, row by row.
template <RowEpilogue KIND_>
class BlockRows {
public:
    static constexpr RowEpilogue KIND = KIND_;
    static constexpr bool IS_LIGHT = KIND != RowEpilogue::other;

    BlockRows() = default;
    BlockRows(const Product& product, const Block& block, void* sums)
        : values_(product.matrix, product.rows.scales, block, sums),
          panels_(block.panels),
          is_gated_(product.epilogue == Epilogue::gate_mul),
          adds_(product.epilogue == Epilogue::add),
          rounds_silu_(rounds_silu(product)),
          is_operand_(product.out_is_operand),
          columns_(is_gated_ ? product.matrix.n / 2 : product.matrix.n),
          out_(product.out),
          out_stride_(product.out_stride),
          factor_(product.factor),
          activation_(product.activation),
          alpha_(product.alpha),
          limit_(product.limit),
          adapters_(product.adapters) {}

    // The row is counted from the first of the rows.
    void operator()(int64_t row) const {
        values_.add_outliers(row, panels_);
        if (is_gate_silu(KIND) || (KIND == RowEpilogue::other && is_gated_)) {
            for (int64_t panel = panels_.begin; panel < panels_.end; panel += 2) {
                write(row, panel / 2 * PANEL,
                      gated(value_at(row, panel), value_at(row, panel + 1)));
            }
            return;
        }
        for (int64_t panel = panels_.begin; panel < panels_.end; ++panel) {
            const int64_t column = panel * PANEL;
            F32 value = value_at(row, panel);
            if constexpr (KIND == RowEpilogue::other) value = activate(value, activation_);
            if (KIND == RowEpilogue::add || (KIND == RowEpilogue::other && adds_)) {
                const float* out = static_cast<const float*>(out_) + row * out_stride_ + column;
                value =
                    fma(value, set1(factor_), load_lanes(out, std::min(PANEL, columns_ - column)));
            }
            write(row, column, value);
        }
    }

private:
    F32 value_at(int64_t row, int64_t panel) const {
        const F32 value = values_.at(row, panel);
        if constexpr (KIND == RowEpilogue::other) return with_adapter(adapters_, row, panel, value);
        return value;
    }

    F32 gated(F32 gate, F32 up) const {
        if constexpr (is_gate_silu(KIND)) return mul(silu_of<KIND>(gate), up);
        if (rounds_silu_) return mul(silu_for_bf16(gate), up);
        return activate_gated(gate, up, activation_, alpha_, limit_);
    }

    // Writes the columns of one panel; the last panel may have fewer than sixteen.
    void write(int64_t row, int64_t column, F32 value) const {
        const int64_t count = std::min(PANEL, columns_ - column);
        if (is_operand_) {
            auto* operands = reinterpret_cast<Bf16Operand*>(
                static_cast<char*>(out_) + operand_offset(DType::bf16, row, out_stride_, 0));
            store_bf16_operands(operands, column, value, count);
        } else {
            store_lanes(static_cast<float*>(out_) + row * out_stride_ + column, value, count);
        }
    }

    BlockValues values_;
    Range panels_ = {0, 0};
    bool is_gated_ = false, adds_ = false, rounds_silu_ = false, is_operand_ = false;
    int64_t columns_ = 0;
    void* out_ = nullptr;
    int64_t out_stride_ = 0;
    float factor_ = 1;
    Activation activation_ = Activation::none;
    float alpha_ = 0, limit_ = 0;
    AdapterRows adapters_;
};

// Calls body(std::integral_constant<RowEpilogue, ...>) with the kind of the product's epilogue.
template <class Body>
inline void with_row_epilogue(const Product& product, Body body) {
    switch (row_epilogue(product)) {
        case RowEpilogue::store:
            return body(std::integral_constant<RowEpilogue, RowEpilogue::store>());
        case RowEpilogue::add: return body(std::integral_constant<RowEpilogue, RowEpilogue::add>());
        case RowEpilogue::gate_silu:
            return body(std::integral_constant<RowEpilogue, RowEpilogue::gate_silu>());
        case RowEpilogue::gate_silu_for_bf16:
            return body(std::integral_constant<RowEpilogue, RowEpilogue::gate_silu_for_bf16>());
        case RowEpilogue::other:
            return body(std::integral_constant<RowEpilogue, RowEpilogue::other>());
    }
}

inline void finish_block(const Product& product, const Block& block, void* sums) {
    with_row_epilogue(product, [&](auto kind) {
        const BlockRows<kind> rows(product, block, sums);
        for (int64_t row = block.rows.begin; row < block.rows.end; ++row) rows(row);
    });
}

}  // namespace TACO_ISA
