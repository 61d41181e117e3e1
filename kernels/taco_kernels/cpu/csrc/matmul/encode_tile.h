// Quantizes rows of a tile of bf16 operands to int8.
//
// It gives the bits of encode_i8_row. A row of a tile is lines of memory that are 1 KB apart, which
// neither the hardware nor a core's few fill buffers fetch in time. So the rows of a tile are read
// and written together, in the order of memory.
#pragma once

#include "matmul/encode_int8.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

class TileEncoder {
    static constexpr int64_t LINE_ITEMS = PIECE_BYTES / int64_t(sizeof(Bf16Operand));
    static constexpr int64_t LINES = INT8_PIECE / LINE_ITEMS;  // of rows, for one of operands

public:
    static bool fits(int64_t k, const ColumnOrder& order) {
        return k % INT8_PIECE == 0 && !order.columns;
    }

    // Of `count` rows of one tile: `rows` and `out` are the first operands of the first.
    TileEncoder(const Bf16Operand* rows, Int8Operand* out, RowScale* scales, int64_t count,
                int64_t k)
        : rows_(rows), out_(out), scales_(scales), count_(count), k_(k) {}

    void run() {
        add_magnitudes();
        for (int64_t row = 0; row < count_; ++row) find_outliers(row);
        quantize();
        for (int64_t row = 0; row < count_; ++row) write_low_parts(row);
    }

private:
    // 64 columns of a row, from column k on.
    struct Piece {
        F32 numbers[LINES * 2];

        Piece(const Bf16Operand* row, int64_t k) {
#pragma GCC unroll 4
            for (int64_t i = 0; i < LINES * 2; ++i) {
                numbers[i] = load_bf16(operand_at(row, k + i * LANES));
            }
        }
    };

    Piece piece(int64_t row, int64_t k) const { return {rows_ + row * LINE_ITEMS, k}; }

    // Some columns of all rows at a time, as many as an L1 cache holds; each row fetches its share
    // of the next ones.
    void add_magnitudes() {
        constexpr int64_t COLUMNS = 512;
        for (int64_t k = 0; k < k_; k += COLUMNS) {
            const int64_t end = std::min(k + COLUMNS, k_);
            for (int64_t row = 0; row < count_; ++row) {
                RowMagnitudes sums = magnitudes_[row];
                const char* next = reinterpret_cast<const char*>(operand_at(rows_, k + COLUMNS)) +
                                   row * (COLUMNS / LINE_ITEMS) * PIECE_BYTES;
                for (int64_t at = k; at < end; at += INT8_PIECE) {
                    for (int64_t i = 0; i < LINES; ++i, next += PIECE_BYTES) {
                        __builtin_prefetch(next);
                    }
                    const Piece values = piece(row, at);
#pragma GCC unroll 4
                    for (const F32& numbers : values.numbers) sums.add(numbers);
                }
                magnitudes_[row] = sums;
            }
        }
    }

    void find_outliers(int64_t row) {
        RowScale& scale = scales_[row];
        scale.scale =
            choose_scale(magnitudes_[row], k_, outliers_[row], [&](OutlierSearch& search) {
                for (int64_t k = 0; k < k_; k += INT8_PIECE) {
                    const Piece values = piece(row, k);
                    const auto& numbers = values.numbers;
                    const F32 left = max(abs(numbers[0]), abs(numbers[1]));
                    const F32 right = max(abs(numbers[2]), abs(numbers[3]));
                    if (search.may_hold_outliers(max(left, right))) search.add(k, numbers);
                }
            });
        factors_[row] = 1 / scale.scale;
        split_outliers(outliers_[row], factors_[row], scale);
    }

    void quantize() {
        for (int64_t k = 0; k < k_; k += INT8_PIECE) {
            for (int64_t row = 0; row < count_; ++row) {
                Piece values = piece(row, k);
                const F32 factor = set1(factors_[row]);
#pragma GCC unroll 4
                for (F32& numbers : values.numbers) numbers = mul(numbers, factor);
                store_i8_operands(operand_at(out_ + row * PIECE_BYTES, k), values.numbers);
            }
        }
    }

    // In place of outliers.
    void write_low_parts(int64_t row) {
        const RowOutliers& outliers = outliers_[row];
        for (int32_t i = 0; i < outliers.count; ++i) {
            *operand_at(out_ + row * PIECE_BYTES, outliers.columns[i]) =
                Int8Operand(outliers.values[i]);
        }
    }

    const Bf16Operand* const rows_;
    Int8Operand* const out_;
    RowScale* const scales_;
    const int64_t count_, k_;
    RowMagnitudes magnitudes_[OPERAND_TILE_ROWS];
    RowOutliers outliers_[OPERAND_TILE_ROWS];
    float factors_[OPERAND_TILE_ROWS];
};

}  // namespace TACO_ISA

#endif
