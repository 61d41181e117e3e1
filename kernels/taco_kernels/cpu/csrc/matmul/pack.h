// Packs rows of a weight matrix into panels (matrix.h), and quantizes them.
#pragma once

#include "isa/vector_math.h"
#include "matmul/encode.h"
#include "matmul/matrix.h"

namespace TACO_ISA {

// One row of W, read sixteen numbers at a time.
class SourceRow {
public:
    SourceRow(const Packing& packing, int64_t row)
        : type_(packing.source_type),
          source_(packing.source),
          k_(packing.k),
          begin_(row * packing.stride) {}

    // Numbers i to i + 15, zeros past the end.
    F32 at(int64_t i) const {
        switch (type_) {
            case TableType::f32: return widen(static_cast<const float*>(source_), i, load);
            case TableType::bf16: return widen(static_cast<const bf16*>(source_), i, load_bf16);
            default: return widen(static_cast<const uint16_t*>(source_), i, load_f16);
        }
    }

    // Copies bf16 from i on unchanged, zeros past the end.
    template <int COUNT>
    void copy_bf16(int64_t i, bf16 (&out)[COUNT]) const {
        const bf16* begin = static_cast<const bf16*>(source_) + begin_ + i;
        if (i + COUNT <= k_) {
            std::memcpy(out, begin, sizeof out);
        } else {
            const int64_t copied = std::max<int64_t>(k_ - i, 0);
            std::fill(std::copy_n(begin, copied, out), out + COUNT, bf16(0));
        }
    }

private:
    template <class Item, class Load>
    F32 widen(const Item* items, int64_t i, Load load_sixteen) const {
        if (i + LANES <= k_) return load_sixteen(items + begin_ + i);
        Item last[LANES] = {};
        if (i < k_) std::copy_n(items + begin_ + i, k_ - i, last);
        return load_sixteen(last);
    }

    TableType type_;
    const void* source_;
    int64_t k_, begin_;
};

// [column 0..15][row 0..15] to [row][column].
inline void transpose_words(uint32_t* out, const uint32_t* in) {
    transpose_floats(reinterpret_cast<float*>(out), reinterpret_cast<const float*>(in));
}

// Packs the columns from begin_ to end_ of one panel.
class PanelPacker {
public:
    PanelPacker(const Packing& packing, int64_t panel) : packing_(packing) {
        const int64_t first = panel * PANEL;
        begin_ = std::max<int64_t>(packing.first - first, 0);
        end_ = std::min(packing.first + packing.count - first, PANEL);
        first_row_ = first - packing.first;
        index_ = panel * packing.panel_step;
    }

    void pack() {
        if (packing_.type == DType::i8) choose_scales();
        const int64_t group = k_group(packing_.type);
        const int64_t steps = padded_k(packing_.type, packing_.k) / group;
        auto* panel = static_cast<uint32_t*>(packing_.data) + index_ * steps * PANEL;
        // A group is a 32-bit word for every type, so a panel is the transpose of its words.
        for (int64_t step = 0; step < steps; step += 16) {
            uint32_t words[PANEL][16];
            for (int64_t column = begin_; column < end_; ++column) {
                encode(column, step * group, words[column]);
            }
            const int64_t rows = std::min<int64_t>(16, steps - step);
            if (rows == 16 && end_ - begin_ == PANEL) {
                transpose_words(panel + step * PANEL, words[0]);
                continue;
            }
            for (int64_t row = 0; row < rows; ++row) {
                uint32_t* out = panel + (step + row) * PANEL;
                for (int64_t column = begin_; column < end_; ++column) {
                    out[column] = words[column][row];
                }
            }
        }
    }

private:
    SourceRow row_of(int64_t column) const { return {packing_, first_row_ + column}; }

    void choose_scales() {
        for (int64_t column = begin_; column < end_; ++column) {
            const SourceRow row = row_of(column);
            RowMagnitudes magnitudes;
            for (int64_t i = 0; i < packing_.k; i += LANES) magnitudes.add(row.at(i));
            packing_.scales[index_ * PANEL + column] = int8_scale(magnitudes.top());
            packing_.column_sums[index_ * PANEL + column] = 0;
        }
    }

    // Encodes sixteen groups of a column from k on.
    void encode(int64_t column, int64_t k, uint32_t* words) const {
        const SourceRow row = row_of(column);
        if (packing_.type == DType::f32) {
            float numbers[LANES];
            store(numbers, row.at(k));
            std::memcpy(words, numbers, sizeof numbers);
        } else if (packing_.type == DType::bf16) {
            bf16 numbers[2 * LANES];
            if (packing_.source_type == TableType::bf16) {
                row.copy_bf16(k, numbers);
            } else {
                store_bf16(numbers, row.at(k));
                store_bf16(numbers + LANES, row.at(k + LANES));
            }
            std::memcpy(words, numbers, sizeof numbers);
        } else {
            const F32 scale = set1(packing_.scales[index_ * PANEL + column]);
            int8_t numbers[4 * LANES];
            for (int at = 0; at < 4 * LANES; at += LANES) {
                store_i8(numbers + at, div(row.at(k + at), scale));
            }
            int32_t sum = 0;
            for (int8_t number : numbers) sum += number;
            packing_.column_sums[index_ * PANEL + column] += sum;
            std::memcpy(words, numbers, sizeof numbers);
        }
    }

    const Packing& packing_;
    int64_t begin_, end_, first_row_, index_;
};

inline void pack(Thread& thread, const Packing& packing) {
    const int64_t first = packing.first / PANEL;
    const int64_t past = ceil_div(packing.first + packing.count, PANEL);
    thread.share(past - first, 1,
                 [&](int64_t panel, int64_t) { PanelPacker(packing, first + panel).pack(); });
}

}  // namespace TACO_ISA
