// One step of a product for each matrix type: 64 bytes of a panel (sixteen columns at GROUP
// consecutive k) times GROUP operands of a row.
//
// Where a panel's row must be widened it is read in PARTS, so that the widened values do not push
// sums out of the registers. Each sum takes its products in the order of k.
#pragma once

#include <type_traits>

#include "isa/code_pairs.h"

namespace TACO_ISA {

constexpr int64_t STEP_BYTES = 64;

struct F32Step {
    using Operand = float;
    using Item = float;
    using Sum = F32;
    using PanelPart = F32;
    static constexpr int GROUP = 1, PARTS = 1, STREAM_PANELS = 1;

    static Sum zeros() { return zero(); }
    static Sum load_sum(const Item* p) { return load(p); }
    static void store_sum(Item* p, Sum sum) { store(p, sum); }
    static PanelPart load_part(const char* p, int) {
        return load(reinterpret_cast<const float*>(p));
    }
    static Sum dot(Sum sum, PanelPart row, const Operand* a, int) {
        return fma(set1(*a), row, sum);
    }
};

struct Bf16Step {
    using Operand = Bf16Operand;
    using Item = float;
    using Sum = F32;
    using PanelPart = std::conditional_t<WIDENS_PAIRS, F32, PairRow>;
    static constexpr int GROUP = 2, PARTS = WIDENS_PAIRS ? 2 : 1, STREAM_PANELS = PARTS;

    static Sum zeros() { return zero(); }
    static Sum load_sum(const Item* p) { return load(p); }
    static void store_sum(Item* p, Sum sum) { store(p, sum); }
    static PanelPart load_part(const char* p, int part) {
        return choose(load_pairs(reinterpret_cast<const bf16*>(p)), part);
    }
    // The parts of a widened row are the two halves of dot_pairs.
    static Sum dot(Sum sum, F32 row, const float* a, int part) {
        return fma(set1(a[part]), row, sum);
    }
    static Sum dot(Sum sum, PairRow row, const Operand* a, int) { return dot_pairs(sum, row, a); }

private:
    template <class Pairs>
    static PanelPart choose(const Pairs& pairs, [[maybe_unused]] int part) {
        if constexpr (WIDENS_PAIRS) {
            return part == 0 ? pairs.even : pairs.odd;
        } else {
            return pairs;
        }
    }
};

#ifndef TACO_HAS_TILES
struct Int8Step {
    using Operand = Int8Operand;
    using Item = int32_t;
    using Sum = I32;
    using PanelPart = QuadPart;
    static constexpr int GROUP = 4, PARTS = QUAD_PARTS, STREAM_PANELS = 1;

    static Sum zeros() { return zero_i32(); }
    static Sum load_sum(const Item* p) { return load_i32(p); }
    static void store_sum(Item* p, Sum sum) { store_i32(p, sum); }
    static PanelPart load_part(const char* p, int part) {
        return load_quads(reinterpret_cast<const int8_t*>(p), part);
    }
    static Sum dot(Sum sum, PanelPart row, const Operand* a, int part) {
        return dot_quads(sum, row, a, part);
    }
};
#endif

}  // namespace TACO_ISA
