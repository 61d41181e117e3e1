// Products of matrices of codes (code_args.h) with int8 activations: of 4-bit codes, and of 5, 6
// and 8-bit codes without zeros. Groups have a multiple of 16 columns, or all columns. On tiles
// they have a multiple of 64 or all columns, and neither steps nor minima.
//
// A row of activations is (q + OUTLIER_STEP * h) * s, with int8 numbers q, high parts h that are 0
// except for outliers, and the row's scale s (encode_int8.h). In float32, a product is:
//
//     sum = 0;   for each group g by rising column:  sum = fma(float(S[g]), scale[g], sum)
//                         if there are minima:       sum = fma(-float(Q[g]), minimum[g], sum)
//     high = 0;  for each outlier likewise:          high = fma(h * (code - zero), scale[g], high)
//                         if there are minima:       high = fma(-h, minimum[g], high)
//     result = fma(high, OUTLIER_STEP, sum) * s
//
// where S[g] is the sum of q * (code - zero) over the group and Q[g] the sum of q, exact int32. So
// a result has the same bits on all instruction sets, whatever is computed with it.
//
// A block of 4-bit codes has columns 0 to 3 of each row in the low halves of its bytes, and columns
// 4 to 7 in the high halves; a block of 8-bit codes is a row of an int8 panel (matrix.h):
//
//     byte[row 0..15][column % 4]
#pragma once

#include "isa/code_quads.h"
#include "matmul/codes/group_scales.h"
#include "matmul/matrix.h"
#include "runtime/range.h"

namespace TACO_ISA {

// Columns of a step: one AMX tile.
constexpr int64_t STEP_K = 64;

inline bool is_grouped_int8(const Matrix& matrix) {
    return matrix.parts && matrix.type == DType::i8;
}

// The groups of one panel.
class PanelGroups {
public:
    PanelGroups(const CodePart& part, int64_t panel) : part_(part), data_(part.panel(panel)) {}

    // Of a group's chunk.
    const char* header(int64_t group) const {
        return data_ + quotient(group, part_.num_groups) * part_.chunk_bytes();
    }
    const char* codes(int64_t group) const {
        return header(group) + part_.header_bytes() +
               part_.code_bytes(of_chunk(group) * part_.group_columns());
    }
    // Steps of a group; the last one may have fewer.
    int64_t steps() const { return ceil_div(part_.chunk, STEP_K); }
    // The memory of a step: of the header, if the step begins a group.
    const char* at(int64_t step) const {
        const int64_t group = step / steps(), begin = group * steps();
        return step == begin ? header(group)
                             : codes(group) + part_.code_bytes((step - begin) * STEP_K);
    }
    // Scales, and zeros or minima.
    GroupScales scales(int64_t group) const {
        return load_group(part_, header(group), of_chunk(group));
    }
    // Of each row.
    I32 zeros(int64_t group) const {
        if (part_.offset != GroupOffset::zero) return set1_i32(part_.zero);
        const char* zeros = header(group) + PANEL * scale_bytes(part_.scale_type);
        return to_int(load_bf16(reinterpret_cast<const bf16*>(zeros)));
    }

    // A column of a group, of the sixteen rows less their zeros.
    F32 numbers(int64_t group, int64_t column) const {
        const char* block = codes(group) + part_.code_bytes(column);
        if (part_.kind == CodeKind::int8) {
            return load_byte_of_quads(reinterpret_cast<const int8_t*>(block), column % 4);
        }
        const int byte = int(8 * (column % 4));
        F32 high = zero();
        if (const int bits = high_bits(part_.kind)) {
            const int64_t quad = column % part_.block_columns() / 4;
            high = bits_of_lanes(block, byte + int(quad) * bits, (1 << bits) - 1);
            block += 64 * (1 + quad / 2);
        }
        const F32 low = bits_of_lanes(block, byte + int(column % 8 / 4 * 4), 15);
        return sub(fma(high, set1(16), low), to_float(zeros(group)));
    }

    // The same column of W.
    F32 values(int64_t group, int64_t column, const GroupScales& scales) const {
        const F32 value = mul(numbers(group, column), scales.scale);
        return part_.offset == GroupOffset::minimum ? sub(value, scales.offset) : value;
    }

#ifdef TACO_HAS_TILES
    // Decodes steps of a group, counted from its first, as tiles.
    void decode(int64_t group, Range steps, int8_t* out) const {
        const int64_t first = steps.begin * STEP_K, size = part_.block_columns();
        const int64_t left = std::min(part_.chunk, part_.k - group * part_.chunk);
        const int64_t end = std::min(steps.end * STEP_K, round_up(left, size));
        const char* in = codes(group) + part_.code_bytes(first);
        if (part_.kind == CodeKind::int8) {
            std::memcpy(out, in, size_t(end - first) * PANEL);
        } else {
            const I32 zeros = this->zeros(group);
            for (int64_t k = first; k < end; k += size, in += 64) {
                int8_t* quads = out + (k - first) * PANEL;
                store_less_zeros(quads, load_nibble_quads(in, 0), zeros);
                store_less_zeros(quads + 64, load_nibble_quads(in, 1), zeros);
            }
        }
        std::memset(out + (end - first) * PANEL, 0, size_t(steps.end * STEP_K - end) * PANEL);
    }
#endif

private:
    int64_t of_chunk(int64_t group) const { return group % part_.num_groups; }

    const CodePart& part_;
    const char* data_;
};

// The products of a row's outliers with a panel's rows, in units of OUTLIER_STEP. Never inlined:
// few rows have any.
__attribute__((noinline)) inline F32 grouped_outlier_sums(const RowScale& scale,
                                                          const CodePart& part, int64_t panel) {
    const PanelGroups groups(part, panel);
    const int64_t columns = part.group_columns();
    F32 sums = zero();
    for (int32_t i = 0; i < scale.num_outliers; ++i) {
        const Outlier& outlier = scale.outliers[i];
        const int64_t index = outlier.k / columns;
        const GroupScales group = groups.scales(index);
        const F32 numbers = groups.numbers(index, outlier.k % columns);
        const float sign = i < scale.num_positive ? 1 : -1;
        const float high = sign * float(outlier.magnitude());
        sums = fma(mul(set1(high), numbers), group.scale, sums);
        if (part.offset == GroupOffset::minimum) sums = fma(set1(-high), group.offset, sums);
    }
    return sums;
}

}  // namespace TACO_ISA
