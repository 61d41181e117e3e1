#include "matmul/codes/multiply_codes.h"

#include "matmul/codes/part_product.h"

namespace TACO_ISA {

void decode_steps(const CodePart& part, const char* panel, Range steps, Bf16Operand* out) {
    if (part.kind == CodeKind::none) {
        for (int64_t step = steps.begin; step < steps.end; ++step, out += PAIR_ITEMS) {
            store_pairs(out, load_pairs(reinterpret_cast<const bf16*>(panel + step * 64)));
        }
        return;
    }
    const Range columns = columns_of(part, steps);
    if (columns.size()) {
        with_codes(part, [&](auto tag, auto offset) {
            decode_columns<typename decltype(tag)::Type, offset>(part, panel, columns, out);
        });
    }
    std::fill(out + columns.size() * PANEL, out + steps.size() * PAIR_ITEMS, Bf16Operand(0));
}

#ifndef TACO_HAS_TILES
void sum_codes_on_vectors(const Block& block, float* sums) {
    for (int64_t i = 0; i < block.codes->num_parts; ++i) {
        const PartPanels panels(block, block.codes->parts[i]);
        if (!panels.count) continue;
        PartProduct product(block, panels, sums);
        if (panels.part.kind == CodeKind::none || panels.part.groups) {
            product.run_decoded();
        } else if (block.rows.size() <= FEW_CODE_ROWS) {
            product.run_few();
        } else {
            product.run();
        }
    }
}
#endif

}  // namespace TACO_ISA
