#include "packed.h"

#include <algorithm>
#include <cmath>

namespace {

// In float, so that what lies in the middle of two steps goes the same way as in the kernels.
float int8_scale(const float* numbers, int64_t count) {
    float greatest = 0;
    for (int64_t i = 0; i < count; ++i) greatest = std::max(greatest, std::fabs(numbers[i]));
    return greatest == 0 ? 1 : greatest / 127;
}

// As matmul/encode_int8.h describes it.
float scale_beside_outliers(const float* numbers, int64_t count) {
    Floats magnitudes;
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        magnitudes.push_back(std::fabs(numbers[i]));
        sum += magnitudes.back();
    }
    std::sort(magnitudes.rbegin(), magnitudes.rend());
    const float mean = sum / float(count);
    const auto above = [&](float limit) {
        return size_t(std::count_if(magnitudes.begin(), magnitudes.end(),
                                    [=](float magnitude) { return magnitude > limit; }));
    };
    size_t outliers = above(8 * mean);
    if (outliers > MAX_OUTLIERS) outliers = std::min<size_t>(above(12 * mean), MAX_OUTLIERS);
    if (outliers == 0) return int8_scale(numbers, count);
    const float others = outliers < magnitudes.size() ? magnitudes[outliers] : 0;
    return std::max(others / 127, magnitudes[0] / (127 * OUTLIER_STEP));
}

// Rounded to bf16, or by to_int8(x).
template <class ToInt8>
Doubles rounded(DType type, const float* row, int64_t k, float scale, ToInt8 to_int8) {
    Doubles out(row, row + k);
    if (type == DType::bf16) {
        for (double& x : out) x = from_bf16(to_bf16(float(x)));
    } else if (type == DType::i8) {
        for (double& x : out) x = double(std::nearbyint(to_int8(float(x)))) * scale;
    }
    return out;
}

}  // namespace

int64_t operand_memory(const TacoPool* pool, DType type, int64_t count, int64_t k) {
    if (type == DType::f32) return count * k * int64_t(sizeof(float));
    const int64_t rows = round_up(count, taco_pool_operand_tile_rows(pool));
    return rows * padded_k(type, k) *
           (type == DType::bf16 ? taco_pool_bf16_operand_bytes(pool)
                                : taco_pool_int8_operand_bytes(pool));
}

Doubles as_operands(DType type, const float* row, int64_t k) {
    const float scale = scale_beside_outliers(row, k), factor = 1 / scale;
    return rounded(type, row, k, scale, [=](float x) { return x * factor; });
}

Packed::Packed(TacoPool* pool, Random& random, DType type, int64_t n, int64_t k, bool has_bias,
               bool is_gated)
    : is_gated_(is_gated), data_(0) {
    const Floats source = random.normal(n * k, type == DType::bf16), bias = random.normal(n);
    for (int64_t row = 0; row < n; ++row) {
        const float* weights = source.data() + row * k;
        const float scale = int8_scale(weights, k);
        const Doubles kept = rounded(type, weights, k, scale, [=](float x) { return x / scale; });
        weights_.insert(weights_.end(), kept.begin(), kept.end());
        bias_.push_back(has_bias ? double(bias[size_t(row)]) : 0);
    }

    matrix_ = {type, n, k, nullptr, nullptr, nullptr, nullptr};
    const int64_t panels = is_gated ? matrix_.num_pair_panels() : matrix_.num_panels();
    data_ = Bytes(panels * matrix_.panel_bytes());
    scales_.assign(size_t(panels * PANEL), 0);
    column_sums_.assign(size_t(panels * PANEL), 0);
    packed_bias_.assign(size_t(panels * PANEL), 0);
    for (int64_t row = 0; row < n; ++row) {
        packed_bias_[size_t(packed_column(row))] = float(bias_[size_t(row)]);
    }
    matrix_.data = data_.data();
    matrix_.scales = scales_.data();
    matrix_.column_sums = column_sums_.data();
    matrix_.bias = has_bias ? packed_bias_.data() : nullptr;

    const int64_t parts = is_gated ? 2 : 1, rows = n / parts;
    for (int64_t part = 0; part < parts; ++part) {
        const Packing packing = {TableType::f32,
                                 source.data() + part * rows * k,
                                 rows,
                                 k,
                                 k,
                                 type,
                                 0,
                                 parts,
                                 static_cast<char*>(data_.data()) + part * matrix_.panel_bytes(),
                                 scales_.data() + part * PANEL,
                                 column_sums_.data() + part * PANEL};
        taco_pack(pool, &packing, 1);
    }
}

Doubles Packed::product(const Doubles& row) const {
    Doubles out = bias_;
    for (int64_t column = 0; column < n(); ++column) {
        for (int64_t i = 0; i < k(); ++i) {
            out[size_t(column)] += row[size_t(i)] * weights_[size_t(column * k() + i)];
        }
    }
    return out;
}

int64_t Packed::packed_column(int64_t row) const {
    if (!is_gated_) return row;
    const int64_t half = n() / 2, column = row % half;
    return (column / PANEL * 2 + row / half) * PANEL + column % PANEL;
}

double Packed::packed_number(int64_t column, int64_t k) const {
    const int64_t group = k_group(matrix_.type);
    const int64_t at = (k / group * PANEL + column % PANEL) * group + k % group;
    const void* panel = matrix_.panel(column / PANEL);
    switch (matrix_.type) {
        case DType::f32: return static_cast<const float*>(panel)[at];
        case DType::bf16: return from_bf16(static_cast<const bf16*>(panel)[at]);
        case DType::i8: break;
    }
    return double(static_cast<const int8_t*>(panel)[at]) * matrix_.scales[column];
}

bool Packed::is_packed_right() const {
    for (int64_t row = 0; row < n(); ++row) {
        const int64_t column = packed_column(row);
        double sum = 0;
        for (int64_t i = 0; i < padded_k(matrix_.type, k()); ++i) {
            const double got = packed_number(column, i);
            if (got != (i < k() ? weights_[size_t(row * k() + i)] : 0)) return false;
            sum += got;
        }
        if (matrix_.type != DType::i8) continue;
        const double scale = matrix_.scales[column];
        if (std::fabs(sum - matrix_.column_sums[column] * scale) > 1e-4 * scale) return false;
    }
    return true;
}
