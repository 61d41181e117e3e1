// Element types, reductions, and the description of an operation that all ranks must agree on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taco::collective {

// The numbers are part of the C ABI: taco_train/collective/library.py has the same ones.
enum class Type : int32_t {
    float16,
    bfloat16,
    float32,
    float64,
    uint8,
    int8,
    int16,
    int32,
    int64,
    boolean,
};

enum class Reduction : int32_t { sum, average, minimum, maximum, product };

enum class Kind : int32_t {
    none,
    all_reduce,
    all_gather,
    broadcast,
    all_to_all,
    reduce_scatter,
    barrier,
    exchange,
};

constexpr size_t size_of(Type type) {
    switch (type) {
        case Type::uint8:
        case Type::int8:
        case Type::boolean: return 1;
        case Type::float16:
        case Type::bfloat16:
        case Type::int16: return 2;
        case Type::float64:
        case Type::int64: return 8;
        default: return 4;
    }
}

// The type that sums are kept in: 16-bit floats accumulate in float32.
constexpr Type accumulator_of(Type type) {
    return type == Type::float16 || type == Type::bfloat16 ? Type::float32 : type;
}

// What one rank asks for. It travels in every message, so that a rank that asks for something else
// is reported and not waited for.
struct Description {
    Kind kind = Kind::none;
    Type type = Type::uint8;
    Reduction reduction = Reduction::sum;
    int32_t wire = 0;    // the wire format, or the number of a schedule: equal on all ranks
    uint64_t count = 0;  // elements
    int64_t extra = 0;   // root, or the number of selected elements

    bool operator==(const Description& other) const {
        return kind == other.kind && type == other.type && reduction == other.reduction &&
               wire == other.wire && count == other.count && extra == other.extra;
    }
};

}  // namespace taco::collective
