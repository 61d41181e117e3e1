// Encodes rows of floats as operands: converts them to bf16, or quantizes them to int8.
#pragma once

#include "isa/partial_vectors.h"
#include "isa/vector_math.h"
#include "matmul/matrix.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// Bytes of one operand of a matrix of `type`.
constexpr int64_t operand_bytes(DType type) {
    return type == DType::f32    ? int64_t(sizeof(float))
           : type == DType::bf16 ? int64_t(sizeof(Bf16Operand))
                                 : int64_t(sizeof(Int8Operand));
}

// Scale of symmetric int8: the greatest absolute value becomes 127.
inline float int8_scale(float greatest) { return greatest == 0 ? 1.0f : greatest / 127; }

// Encodes one row of `k` floats as padded_k(type, k) operands; sets `scale` for int8 only.
inline void encode_row(DType type, int64_t k, const float* row, void* out, float* scale) {
    const auto vector_at = [&](int64_t i) {
        return load_lanes(row + i, std::clamp<int64_t>(k - i, 0, LANES));
    };
    if (type == DType::f32) {
        std::copy_n(row, k, static_cast<float*>(out));
        return;
    }
    const int64_t padded = padded_k(type, k);
    if (type == DType::bf16) {
        auto* operands = static_cast<Bf16Operand*>(out);
        for (int64_t i = 0; i < padded; i += LANES) store_bf16_operand(operands + i, vector_at(i));
        return;
    }
    F32 greatest = zero();
    for (int64_t i = 0; i < k; i += LANES) {
        greatest = max(greatest, abs(vector_at(i)));
    }
    *scale = int8_scale(reduce_max(greatest));
    auto* operands = static_cast<Int8Operand*>(out);
    const F32 divisor = set1(*scale);
    for (int64_t i = 0; i < padded; i += LANES) {
        store_i8_operand(operands + i, div(vector_at(i), divisor));
    }
}

// Encodes many rows: `out` is [count, padded_k], scales [count].
inline void encode_rows(Thread& thread, DType type, int64_t count, int64_t k, const float* rows,
                        int64_t stride, void* out, float* scales) {
    const int64_t row_bytes = padded_k(type, k) * operand_bytes(type);
    thread.share(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            encode_row(type, k, rows + row * stride, static_cast<char*>(out) + row * row_bytes,
                       scales + row);
        }
    });
}

}  // namespace TACO_ISA
