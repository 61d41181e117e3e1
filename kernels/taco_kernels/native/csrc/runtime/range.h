// Some neighbours in a row of things: rows, panels, tokens.
#pragma once

#include <cstdint>

namespace TACO_ISA {

struct Range {
    int64_t begin, end;  // without the last

    int64_t size() const { return end - begin; }
};

}  // namespace TACO_ISA
