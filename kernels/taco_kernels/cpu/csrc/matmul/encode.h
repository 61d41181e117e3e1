// Encodes rows of floats as operands: converts them to bf16, or quantizes them to int8.
#pragma once

#include "isa/partial_vectors.h"
#include "matmul/encode_int8.h"
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

}  // namespace TACO_ISA
