// Activations of one row, plain or as the gate of a product.
#pragma once

#include "elementwise/map_row.h"
#include "isa/vector_math.h"

namespace TACO_ISA {

// out may be x.
inline void activate_row(Activation activation, const float* x, int64_t size, float* out) {
    map_row(size, out, [=](int64_t i, int64_t count) {
        return activate(load_lanes(x + i, count), activation);
    });
}

// out = act(gate) * up, or as `activate_gated` says; out may be gate or up.
inline void gate_up_row(Activation activation, float alpha, float limit, const float* gate,
                        const float* up, int64_t size, float* out) {
    map_row(size, out, [=](int64_t i, int64_t count) {
        return activate_gated(load_lanes(gate + i, count), load_lanes(up + i, count), activation,
                              alpha, limit);
    });
}

}  // namespace TACO_ISA
