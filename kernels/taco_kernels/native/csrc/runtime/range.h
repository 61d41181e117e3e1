// A half-open range of indices: rows, panels or tokens.
#pragma once

#include <cstdint>

namespace TACO_ISA {

struct Range {
    int64_t begin, end;  // end is excluded

    int64_t size() const { return end - begin; }
};

}  // namespace TACO_ISA
