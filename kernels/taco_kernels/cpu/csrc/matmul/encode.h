// Encodes rows of floats as operands: converts them to bf16, or quantizes them to int8.
#pragma once

#include "isa/partial_vectors.h"
#include "matmul/encode_int8.h"
#include "matmul/encode_tile.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// A row of floats in memory, sixteen at a time, with zeros past the last.
struct FloatRow {
    const float* values;
    int64_t k;

    F32 at(int64_t i) const { return load_lanes(values + i, std::clamp<int64_t>(k - i, 0, LANES)); }

    template <class Body>
    void each(Body body) const {
        int64_t i = 0;
        for (; i + LANES <= k; i += LANES) body(i, load(values + i), int64_t(LANES));
        if (i < k) body(i, at(i), k - i);
    }
};

// A row of operands of a bf16 matrix, likewise. Those past the last may hold anything.
struct OperandRow {
    const Bf16Operand* values;
    int64_t k;

    template <class Body>
    void each(Body body) const {
        int64_t i = 0;
        for (; i + LANES <= k; i += LANES) body(i, load_operand(i), int64_t(LANES));
        if (i < k) body(i, select_bits((1u << (k - i)) - 1, load_operand(i), zero()), k - i);
    }

private:
    F32 load_operand(int64_t i) const {
        if constexpr (sizeof(Bf16Operand) == sizeof(float)) {
            return load(reinterpret_cast<const float*>(operand_at(values, i)));
        } else {
            return load_bf16(reinterpret_cast<const bf16*>(operand_at(values, i)));
        }
    }
};

// Encodes one row of `k` floats as padded_k(type, k) operands, the first of them at `out`. `scale`
// and `order` are for int8 only.
inline void encode_row(DType type, int64_t k, const float* row, void* out, RowScale* scale,
                       const ColumnOrder& order = {}) {
    const FloatRow values{row, k};
    switch (type) {
        case DType::f32: std::copy_n(row, k, static_cast<float*>(out)); break;
        case DType::bf16:
            for (int64_t i = 0; i < padded_k(type, k); i += LANES) {
                store_bf16_operand(operand_at(static_cast<Bf16Operand*>(out), i), values.at(i));
            }
            break;
        case DType::i8:
            encode_i8_row(values, k, static_cast<Int8Operand*>(out), *scale, order);
            break;
    }
}

// Encodes many rows: `out` has operand_rows(type, count) rows of padded_k, scales [count].
inline void encode_rows(Thread& thread, DType type, int64_t count, int64_t k, const float* rows,
                        int64_t stride, void* out, RowScale* scales, const ColumnOrder& order) {
    const int64_t padded = padded_k(type, k);
    thread.share(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            encode_row(type, k, rows + row * stride,
                       static_cast<char*>(out) + operand_offset(type, row, padded, 0), scales + row,
                       order);
        }
    });
}

// Likewise encodes rows of operands of a bf16 matrix, with a stride of padded_k, as int8.
inline void encode_operands(Thread& thread, int64_t count, int64_t k, const void* rows, void* out,
                            RowScale* scales, const ColumnOrder& order) {
    const int64_t padded = padded_k(DType::i8, k), padded_rows = padded_k(DType::bf16, k);
    const auto* from = static_cast<const char*>(rows);
    const auto operands = [&](int64_t row) {
        return reinterpret_cast<const Bf16Operand*>(
            from + operand_offset(DType::bf16, row, padded_rows, 0));
    };
    const auto encoded = [&](int64_t row) {
        return reinterpret_cast<Int8Operand*>(static_cast<char*>(out) +
                                              operand_offset(DType::i8, row, padded, 0));
    };
#ifdef TACO_HAS_TILES
    if (TileEncoder::fits(k, order)) {
        // One thread reads a tile, but a few rows are for all threads.
        const int64_t grain = count < 64 ? 4 : OPERAND_TILE_ROWS;
        return thread.share(count, grain, [&](int64_t begin, int64_t end) {
            TileEncoder(operands(begin), encoded(begin), scales + begin, end - begin, k).run();
        });
    }
#endif
    thread.share(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            encode_i8_row(OperandRow{operands(row), k}, k, encoded(row), scales[row], order);
        }
    });
}

}  // namespace TACO_ISA
