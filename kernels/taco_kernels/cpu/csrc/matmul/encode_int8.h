// Quantizes rows of activations to int8.
//
// A row has one scale. Some channels of language models are many times greater than the others
// (LLM.int8(), Dettmers et al. 2022, section 4): with one scale the others would be rounded to a
// few steps. So values far above a row's mean magnitude are outliers, which keep 16 bits: the
// operand holds the low part, RowScale the high part, which the epilogue multiplies separately. The
// scale is that of the other values. A row without outliers costs nothing more.
#pragma once

#include <algorithm>
#include <cmath>

#include "isa/partial_vectors.h"
#include "isa/vector_math.h"
#include "matmul/matrix.h"
#include "matmul/operand_layout.h"
#include "runtime/thread_memory.h"

namespace TACO_ISA {

// int8 operands of a row that are adjacent on all instruction sets.
constexpr int64_t INT8_PIECE = 64;

// A value is an outlier above this multiple of the row's mean magnitude: 6.4 standard deviations of
// normal numbers, which have none.
constexpr float OUTLIER_LIMIT = 8;

// Scale of symmetric int8: the greatest absolute value becomes 127.
inline float int8_scale(float greatest) { return greatest == 0 ? 1.0f : greatest / 127; }

// The greatest values of a row above a limit, and the greatest magnitude of the others.
class OutlierSearch {
public:
    OutlierSearch(float limit, RowScale& scale) : limit_(set1(limit)), scale_(scale) {}

    // Takes the values from column k on, in order of k.
    void take(int64_t k, F32 values) {
        const F32 magnitudes = abs(values);
        others_ = max(select_less(limit_, magnitudes, zero(), magnitudes), others_);
        uint32_t above = less_bits(limit_, magnitudes);
        if (!above) return;
        float lanes[LANES];
        store(lanes, magnitudes);
        for (int lane = 0; above; ++lane, above >>= 1) {
            if (above & 1) add(int32_t(k + lane), lanes[lane]);
        }
    }

    float greatest_other() const { return std::max(reduce_max(others_), dropped_); }

private:
    void add(int32_t k, float magnitude) {
        if (scale_.num_outliers == MAX_OUTLIERS) {
            const int least =
                int(std::min_element(magnitudes_, magnitudes_ + MAX_OUTLIERS) - magnitudes_);
            if (magnitude <= magnitudes_[least]) {
                dropped_ = std::max(dropped_, magnitude);
                return;
            }
            dropped_ = std::max(dropped_, magnitudes_[least]);
            std::copy(magnitudes_ + least + 1, magnitudes_ + MAX_OUTLIERS, magnitudes_ + least);
            std::copy(scale_.outliers + least + 1, scale_.outliers + MAX_OUTLIERS,
                      scale_.outliers + least);
            --scale_.num_outliers;
        }
        magnitudes_[scale_.num_outliers] = magnitude;
        scale_.outliers[scale_.num_outliers++] = {k, 0};
    }

    const F32 limit_;
    RowScale& scale_;
    F32 others_ = zero();
    float dropped_ = 0;
    float magnitudes_[MAX_OUTLIERS];
};

// Sets the outliers' columns and the scale. `row` as in encode_i8_row.
template <class Row>
inline void choose_scale(const Row& row, int64_t k, RowScale& scale) {
    F32 greatest = zero(), sum = zero();
    row.each([&](int64_t, F32 values, int64_t) {
        const F32 magnitudes = abs(values);
        greatest = max(magnitudes, greatest);
        sum = add(sum, magnitudes);
    });
    scale.num_outliers = 0;
    const float top = reduce_max(greatest), limit = OUTLIER_LIMIT * reduce_add(sum) / float(k);
    if (!(top > limit)) {
        scale.scale = int8_scale(top);
        return;
    }
    OutlierSearch search(limit, scale);
    row.each([&](int64_t i, F32 values, int64_t) { search.take(i, values); });
    // The high parts must stay below 128.
    scale.scale = std::max(search.greatest_other() / 127, top / (127 * OUTLIER_STEP));
}

// Replaces outliers among the quantized values from column k on by their low parts, and sets their
// high parts. Returns the number of outliers that were done before and now.
inline int32_t split_outliers(int64_t k, F32& values, RowScale& scale, int32_t done) {
    if (done == scale.num_outliers || scale.outliers[done].k >= k + LANES) return done;
    float lanes[LANES];
    store(lanes, values);
    for (; done < scale.num_outliers && scale.outliers[done].k < k + LANES; ++done) {
        Outlier& outlier = scale.outliers[done];
        float& lane = lanes[outlier.k - k];
        lane = std::nearbyint(lane);
        outlier.high = std::nearbyint(lane / OUTLIER_STEP);
        lane -= outlier.high * OUTLIER_STEP;
    }
    values = load(lanes);
    return done;
}

// Calls store(column, F32) with the quantized values of a row, sixteen columns at a time.
// row.each(body) must call body(column, F32, number of columns) so, with zeros past the last.
template <class Row, class Store>
inline void quantize_row(const Row& row, int64_t k, RowScale& scale, Store store) {
    choose_scale(row, k, scale);
    const F32 divisor = set1(scale.scale);
    int32_t done = 0;
    row.each([&](int64_t i, F32 values, int64_t) {
        values = div(values, divisor);
        done = split_outliers(i, values, scale, done);
        store(i, values);
    });
}

// As encode_i8_row, in another order of columns. Never inlined: few matrices have one.
template <class Row>
__attribute__((noinline)) void encode_i8_row_in_order(const Row& row, int64_t k, Int8Operand* out,
                                                      RowScale& scale, const ColumnOrder& order) {
    auto* numbers = static_cast<int8_t*>(thread_memory(round_up(k + 1, LANES)));
    quantize_row(row, k, scale, [&](int64_t i, F32 values) { store_i8(numbers + i, values); });
    numbers[k] = 0;
    for (int64_t i = 0; i < padded_k(DType::i8, k); i += INT8_PIECE) {
        int8_t piece[INT8_PIECE];
        for (int64_t j = 0; j < INT8_PIECE; ++j) piece[j] = numbers[order.columns[i + j]];
        Int8Operand* operands = operand_at(out, i);
        for (int64_t j = 0; j < INT8_PIECE; j += 4) encode_quad(operands + j, piece + j);
    }
    Outlier* past = scale.outliers + scale.num_outliers;
    for (Outlier* outlier = scale.outliers; outlier < past; ++outlier) {
        outlier->k = order.places[outlier->k];
    }
    std::sort(scale.outliers, past, [](const Outlier& a, const Outlier& b) { return a.k < b.k; });
}

// Encodes a row of k values as padded_k operands. `row` as in quantize_row.
template <class Row>
inline void encode_i8_row(const Row& row, int64_t k, Int8Operand* out, RowScale& scale,
                          const ColumnOrder& order) {
    if (order.columns) return encode_i8_row_in_order(row, k, out, scale, order);
    quantize_row(row, k, scale,
                 [&](int64_t i, F32 values) { store_i8_operand(operand_at(out, i), values); });
    for (int64_t i = round_up(k, LANES); i < padded_k(DType::i8, k); i += LANES) {
        store_i8_operand(operand_at(out, i), zero());
    }
}

}  // namespace TACO_ISA
