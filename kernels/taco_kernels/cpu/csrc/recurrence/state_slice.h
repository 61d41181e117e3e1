// A slice of the state of one head while a sequence's tokens pass: some columns of all its rows.
#pragma once

#include <algorithm>

#include "isa/partial_vectors.h"
#include "recurrence/recurrence_args.h"

namespace TACO_ISA {

// Columns of a slice: the state of a head of 128 keys is then half of a first-level cache.
constexpr int64_t SLICE_COLUMNS = 2 * LANES;
constexpr int64_t MAX_KEY_DIM = 256;  // taco_kernels/recurrence_limits.py

// [key_dim, SLICE_COLUMNS]; columns from `columns` on are zero.
class StateSlice {
public:
    StateSlice(int64_t key_dim, int64_t columns, int64_t value_dim)
        : key_dim_(key_dim), columns_(columns), value_dim_(value_dim) {}

    // Null: zeros.
    void load(const float* source) {
        for (int64_t i = 0; i < key_dim_; ++i) {
            float* row = this->row(i);
            if (columns_ < SLICE_COLUMNS || !source) std::fill_n(row, SLICE_COLUMNS, 0.0f);
            if (source) std::copy_n(source + i * value_dim_, columns_, row);
        }
    }
    void store(float* target) const {
        for (int64_t i = 0; i < key_dim_; ++i) {
            std::copy_n(numbers_ + i * SLICE_COLUMNS, columns_, target + i * value_dim_);
        }
    }

    float* row(int64_t i) { return numbers_ + i * SLICE_COLUMNS; }

private:
    alignas(64) float numbers_[MAX_KEY_DIM * SLICE_COLUMNS];
    int64_t key_dim_, columns_, value_dim_;
};

// The numbers of a slice's columns.
struct SliceRow {
    F32 low, high;

    static SliceRow of(float number) { return {set1(number), set1(number)}; }
    static SliceRow load(const float* p) { return {TACO_ISA::load(p), TACO_ISA::load(p + LANES)}; }
    // The first `count` numbers, then zeros.
    static SliceRow load_first(const float* p, int64_t count) {
        if (count == SLICE_COLUMNS) return load(p);
        const int64_t low = std::min<int64_t>(count, LANES);
        return {load_lanes(p, low), count > LANES ? load_lanes(p + LANES, count - LANES) : zero()};
    }
    void store(float* p) const {
        TACO_ISA::store(p, low);
        TACO_ISA::store(p + LANES, high);
    }
    void store_first(float* p, int64_t count) const {
        store_lanes(p, low, std::min<int64_t>(count, LANES));
        if (count > LANES) store_lanes(p + LANES, high, count - LANES);
    }
};

inline SliceRow add(const SliceRow& a, const SliceRow& b) {
    return {add(a.low, b.low), add(a.high, b.high)};
}
inline SliceRow sub(const SliceRow& a, const SliceRow& b) {
    return {sub(a.low, b.low), sub(a.high, b.high)};
}
inline SliceRow mul(F32 a, const SliceRow& b) { return {mul(a, b.low), mul(a, b.high)}; }
inline SliceRow fma(F32 a, const SliceRow& b, const SliceRow& c) {
    return {fma(a, b.low, c.low), fma(a, b.high, c.high)};
}

}  // namespace TACO_ISA
