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
#include <functional>
#include <limits>

#include "isa/partial_vectors.h"
#include "isa/row_magnitudes.h"
#include "isa/vector_math.h"
#include "matmul/matrix.h"
#include "matmul/operand_layout.h"
#include "runtime/thread_memory.h"

namespace TACO_ISA {

// int8 operands of a row that are adjacent on all instruction sets.
constexpr int64_t INT8_PIECE = 64;

// A value is an outlier above this multiple of the row's mean magnitude: 6.4 standard deviations of
// normal numbers, which have none. But a row with more of them than are kept has a long tail, as
// products of two numbers have. To keep the first sixteen helps it little, so its limit is higher.
constexpr float OUTLIER_LIMIT = 8, LONG_TAIL_LIMIT = 12;

// The smallest scale of activations: they are multiplied by its reciprocal.
constexpr float SMALLEST_SCALE = std::numeric_limits<float>::min();

// Scale of symmetric int8: the greatest absolute value becomes 127.
inline float int8_scale(float greatest) { return greatest == 0 ? 1.0f : greatest / 127; }

// A row's outliers and their values.
struct RowOutliers {
    int32_t count = 0;
    int32_t columns[MAX_OUTLIERS + 1];  // rising; the one past the last is beyond all columns
    float values[MAX_OUTLIERS];         // later the low parts
};

// The greatest values of a row above a limit.
class OutlierCandidates {
public:
    explicit OutlierCandidates(float mean)
        : limit_(OUTLIER_LIMIT * mean), tail_limit_(LONG_TAIL_LIMIT * mean) {}

    // Values up to this are no outliers.
    float limit() const { return limit_; }

    // Takes those of the values from column k on whose bits are set in `lanes`, in order of k.
    // Returns the limit, which may have risen. Never inlined, so that the caller's loop over all
    // other values stays in registers.
    template <int COUNT>
    __attribute__((noinline)) float take(int64_t k, const F32 (&values)[COUNT], uint64_t lanes) {
        float numbers[COUNT * LANES];
        for (int i = 0; i < COUNT; ++i) store(numbers + i * LANES, values[i]);
        for (; lanes; lanes &= lanes - 1) {
            if (count_ == MAX_OUTLIERS && limit_ < tail_limit_) raise_limit();
            if (count_ == MAX_CANDIDATES) keep_greatest();
            const int lane = __builtin_ctzll(lanes);
            add({numbers[lane], int32_t(k + lane)});
        }
        return limit_;
    }

    // Returns the greatest magnitude of those that are not among the outliers.
    float finish(RowOutliers& found) {
        if (count_ > MAX_OUTLIERS) keep_greatest();
        for (int32_t i = 0; i < count_; ++i) {
            found.columns[i] = candidates_[i].column;
            found.values[i] = candidates_[i].value;
        }
        found.count = count_;
        return dropped_;
    }

private:
    struct Candidate {
        float value;
        int32_t column;

        float magnitude() const { return std::fabs(value); }
        // Orders by magnitude, and equal ones by falling column.
        uint64_t rank() const {
            uint32_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            return uint64_t(bits & 0x7fffffff) << 32 | uint32_t(~column);
        }
    };
    // Selecting the greatest of some takes long, so it is done for many at once.
    static constexpr int32_t MAX_CANDIDATES = 4 * MAX_OUTLIERS;

    void add(const Candidate& candidate) {
        if (candidate.magnitude() > limit_) {
            candidates_[count_++] = candidate;
        } else {
            dropped_ = std::max(dropped_, candidate.magnitude());
        }
    }

    // For a row with a long tail.
    void raise_limit() {
        limit_ = tail_limit_;
        const int32_t count = count_;
        count_ = 0;
        for (int32_t i = 0; i < count; ++i) add(candidates_[i]);
    }

    // Drops all candidates but the greatest, and raises the limit to theirs.
    void keep_greatest() {
        uint64_t ranks[MAX_CANDIDATES];
        for (int32_t i = 0; i < count_; ++i) ranks[i] = candidates_[i].rank();
        uint64_t* const least = ranks + MAX_OUTLIERS - 1;
        std::nth_element(ranks, least, ranks + count_, std::greater<>());
        int32_t kept = 0;
        for (int32_t i = 0; i < count_; ++i) {
            const Candidate candidate = candidates_[i];
            if (candidate.rank() >= *least) {
                if (candidate.rank() == *least) limit_ = candidate.magnitude();
                candidates_[kept++] = candidate;
            } else {
                dropped_ = std::max(dropped_, candidate.magnitude());
            }
        }
        count_ = kept;
    }

    float limit_, tail_limit_, dropped_ = 0;
    int32_t count_ = 0;
    Candidate candidates_[MAX_CANDIDATES];
};

// Finds a row's outliers, some vectors of columns at a time.
class OutlierSearch {
public:
    explicit OutlierSearch(OutlierCandidates& candidates)
        : candidates_(candidates), limits_(set1(candidates.limit())) {}

    // Columns from k on.
    template <int COUNT>
    void add(int64_t k, const F32 (&values)[COUNT]) {
        uint64_t above = 0;
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; ++i) {
            const F32 magnitudes = abs(values[i]);
            const uint32_t bits = less_bits(limits_, magnitudes);
            others_ = max(select_bits(bits, zero(), magnitudes), others_);
            above |= uint64_t(bits) << i * LANES;
        }
        if (above) limits_ = set1(candidates_.take(k, values, above));
    }
    // Whether any of sixteen magnitudes may be an outlier's. If not, they have been added.
    bool may_hold_outliers(F32 magnitudes) {
        if (less_bits(limits_, magnitudes)) return true;
        others_ = max(magnitudes, others_);
        return false;
    }
    // Returns the greatest magnitude of those that are not among the outliers.
    float finish(RowOutliers& outliers) {
        return std::max(reduce_max(others_), candidates_.finish(outliers));
    }

private:
    OutlierCandidates& candidates_;
    F32 others_ = zero(), limits_;
};

// Returns the scale of a row of `k` numbers, whose reciprocal is finite; NaN if one of them is.
// search(OutlierSearch&) must add all of its numbers; it is called if the row has outliers, which
// are then found.
template <class Search>
inline float choose_scale(const RowMagnitudes& row, int64_t k, RowOutliers& outliers,
                          Search search) {
    const float top = row.top();
    OutlierCandidates candidates(row.total() / float(k));
    if (!(top > candidates.limit())) return std::max(int8_scale(top), SMALLEST_SCALE);  // or NaN
    OutlierSearch found(candidates);
    search(found);
    const float greatest_other = found.finish(outliers);
    // The high parts must stay below 128.
    return std::max({greatest_other / 127, top / (127 * OUTLIER_STEP), SMALLEST_SCALE});
}

// Splits outliers into low and high parts. The high ones are stored in `scale`.
inline void split_outliers(RowOutliers& outliers, float factor, RowScale& scale) {
    Outlier negative[MAX_OUTLIERS];
    int32_t num_positive = 0, num_negative = 0;
    for (int32_t i = 0; i < outliers.count; ++i) {
        const float whole = std::rint(outliers.values[i] * factor);
        const float high = std::rint(whole / OUTLIER_STEP);
        outliers.values[i] = whole - high * OUTLIER_STEP;
        const Outlier outlier(outliers.columns[i], int32_t(high));
        if (high < 0) {
            negative[num_negative++] = outlier;
        } else {
            scale.outliers[num_positive++] = outlier;
        }
    }
    std::copy_n(negative, num_negative, scale.outliers + num_positive);
    scale.num_positive = num_positive;
    scale.num_outliers = outliers.count;
}

// Calls store(column, F32) with the quantized values of a row, sixteen columns at a time; outliers
// have their low parts. row.each(body) must call body(column, F32, number of columns) so, with
// zeros past the last.
template <class Row, class Store>
inline void quantize_row(const Row& row, int64_t k, RowScale& scale, Store store) {
    RowMagnitudes magnitudes;
    row.each([&](int64_t, F32 values, int64_t) { magnitudes.add(values); });
    RowOutliers outliers;
    scale.scale = choose_scale(magnitudes, k, outliers, [&](OutlierSearch& search) {
        row.each([&](int64_t i, F32 values, int64_t) { search.add<1>(i, {values}); });
    });
    const float factor = 1 / scale.scale;
    split_outliers(outliers, factor, scale);
    outliers.columns[outliers.count] = std::numeric_limits<int32_t>::max();
    int32_t done = 0;
    row.each([&](int64_t i, F32 values, int64_t) {
        values = mul(values, set1(factor));
        for (; outliers.columns[done] < i + LANES; ++done) {
            const uint32_t lane = 1u << (outliers.columns[done] - i);
            values = select_bits(lane, set1(outliers.values[done]), values);
        }
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
        for (int64_t j = 0; j < INT8_PIECE; j += LANES) encode_i8(operands + j, piece + j);
    }
    Outlier* const negative = scale.outliers + scale.num_positive;
    Outlier* const past = scale.outliers + scale.num_outliers;
    for (Outlier* outlier = scale.outliers; outlier < past; ++outlier) {
        *outlier = Outlier(order.places[outlier->k], outlier->magnitude());
    }
    const auto by_k = [](const Outlier& a, const Outlier& b) { return a.k < b.k; };
    std::sort(scale.outliers, negative, by_k);
    std::sort(negative, past, by_k);
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
