// What is done beside a product.
#pragma once

#include <cstdint>

namespace TACO_ISA {

// A product calls something with each of its steps, so that vector instructions and prefetches fill
// the gaps. About 40 vector instructions cost no time beside a step of tiles. This does nothing.
struct NothingBeside {
    void operator()(int64_t) const {}
};

}  // namespace TACO_ISA
