// What LoRA adapters add to the sums of a product: B times A x of a row, sixteen columns at a time.
//
// The rank is small, so that this takes few instructions beside the sums of k, and no memory.
#pragma once

#include "matmul/matrix.h"
#include "matmul/operand_layout.h"
#include "matmul/panel_dot.h"

namespace TACO_ISA {

// `Element`: of B.
template <class Element>
inline F32 adapter_sum(const AdapterRows& rows, int64_t row, int64_t panel) {
    using Operand = OperandOf<Element>;
    constexpr DType type = std::is_same_v<Element, float> ? DType::f32 : DType::bf16;
    // Operands of a row are adjacent in pieces.
    constexpr bool has_pieces = OPERAND_TILE_ROWS > 1 && type != DType::f32;
    constexpr int64_t piece = PIECE_BYTES / int64_t(sizeof(Operand));
    const int32_t id = rows.ids[row];
    const int32_t* range = rows.ranges[id] + 2 * panel;
    const auto* first =
        reinterpret_cast<const Operand*>(static_cast<const char*>(rows.inner) +
                                         operand_offset(type, rows.places[row], rows.stride, 0));
    const auto* columns = static_cast<const Element*>(rows.b[id].panel(panel));
    F32 sums[1] = {zero()};
    for (int64_t k = range[0], end; k < range[1]; k = end) {
        end = has_pieces ? std::min<int64_t>(range[1], (k / piece + 1) * piece) : range[1];
        const Operand* operands = has_pieces ? operand_at(first, k) : first + k;
        dot_panel<Element>(sums, operands, 0, columns, end - k);
        columns += (end - k) * PANEL;
    }
    return sums[0];
}

// `value` of a row and panel, with what the row's adapter adds if it has one.
inline F32 with_adapter(const AdapterRows& rows, int64_t row, int64_t panel, F32 value) {
    if (!rows.places || rows.places[row] < 0) return value;
    return add(value, rows.b->type == DType::f32 ? adapter_sum<float>(rows, row, panel)
                                                 : adapter_sum<bf16>(rows, row, panel));
}

}  // namespace TACO_ISA
