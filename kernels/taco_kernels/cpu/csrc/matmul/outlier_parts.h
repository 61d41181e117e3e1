// The outliers of each row in each part of k.
//
// The product of a part finds its weights in the L1 cache, and so do those of the outliers.
#pragma once

#include "matmul/matrix.h"

namespace TACO_ISA {

class OutlierParts {
public:
    static int64_t bytes(int64_t num_rows, int64_t num_parts) {
        return num_rows * num_parts * int64_t(sizeof(OutlierRange));
    }

    OutlierParts(void* memory, const RowScale* scales, int64_t num_rows)
        : ranges_(static_cast<OutlierRange*>(memory)), scales_(scales), num_rows_(num_rows) {}

    // Parts are adjacent: part_of(index) is its columns. Returns whether there are any outliers.
    template <class PartOf>
    bool find(int64_t num_parts, PartOf part_of) {
        bool has_outliers = false;
        for (int64_t row = 0; row < num_rows_; ++row) {
            const RowScale& scale = scales_[row];
            has_outliers |= scale.num_outliers > 0;
            const auto past = [&](uint8_t first, uint8_t end, int64_t k) {
                while (first < end && scale.outliers[first].k < k) ++first;
                return first;
            };
            const OutlierRange all = scale.all_outliers();
            const int64_t begin = part_of(0).begin;
            uint8_t positive = past(all.positive_begin, all.positive_end, begin);
            uint8_t negative = past(all.negative_begin, all.negative_end, begin);
            for (int64_t part = 0; part < num_parts; ++part) {
                const int64_t end = part_of(part).end;
                OutlierRange& range = ranges_[part * num_rows_ + row];
                range.positive_begin = positive;
                range.positive_end = positive = past(positive, all.positive_end, end);
                range.negative_begin = negative;
                range.negative_end = negative = past(negative, all.negative_end, end);
            }
        }
        return has_outliers;
    }

    // Of the rows, in a part.
    const OutlierRange* of(int64_t part) const { return ranges_ + part * num_rows_; }

private:
    OutlierRange* const ranges_;
    const RowScale* const scales_;
    const int64_t num_rows_;
};

}  // namespace TACO_ISA
