// Work that runs beside a product.
#pragma once

#include <cstdint>

namespace TACO_ISA {

// A product calls a functor with each of its steps, whose vector instructions and prefetches fill
// the gaps: about 40 vector instructions cost no time beside a step of tiles. This one does
// nothing.
struct NothingBeside {
    void operator()(int64_t) const {}
};

}  // namespace TACO_ISA
