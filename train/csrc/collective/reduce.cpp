#include "collective/reduce.h"

#include <algorithm>
#include <cstring>

#include "collective/float16.h"

namespace taco::collective {
namespace {

constexpr size_t kBlock = 4096;  // elements that stay in the first cache between inputs

using Kernel = void (*)(void*, const void*, const void*, size_t);

#define TACO_KERNEL(name, T, expression)                                    \
    __attribute__((target_clones("avx512f", "avx2", "default"))) void name( \
        void* out, const void* left, const void* right, size_t count) {     \
        for (size_t i = 0; i < count; ++i) {                                \
            const T a = static_cast<const T*>(left)[i];                     \
            const T b = static_cast<const T*>(right)[i];                    \
            static_cast<T*>(out)[i] = static_cast<T>(expression);           \
        }                                                                   \
    }

#define TACO_ORDERED(suffix, T)                                 \
    TACO_KERNEL(minimum_##suffix, T, (a < b || a != a) ? a : b) \
    TACO_KERNEL(maximum_##suffix, T, (a > b || a != a) ? a : b)

// Unsigned arithmetic gives signed types their bits too, without undefined overflow.
#define TACO_ARITHMETIC(suffix, T)      \
    TACO_KERNEL(sum_##suffix, T, a + b) \
    TACO_KERNEL(product_##suffix, T, a* b)

TACO_ARITHMETIC(float32, float)
TACO_ARITHMETIC(float64, double)
TACO_ARITHMETIC(uint32, uint32_t)
TACO_ARITHMETIC(uint64, uint64_t)
TACO_KERNEL(sum_uint8, uint8_t, a + b)
TACO_KERNEL(product_uint8, uint8_t, unsigned{a} * b)
TACO_KERNEL(sum_uint16, uint16_t, a + b)
TACO_KERNEL(product_uint16, uint16_t, unsigned{a} * b)
TACO_ORDERED(float32, float)
TACO_ORDERED(float64, double)
TACO_ORDERED(uint8, uint8_t)
TACO_ORDERED(int8, int8_t)
TACO_ORDERED(int16, int16_t)
TACO_ORDERED(int32, int32_t)
TACO_ORDERED(int64, int64_t)
TACO_KERNEL(either, uint8_t, a | b)
TACO_KERNEL(both, uint8_t, a& b)

#undef TACO_ARITHMETIC
#undef TACO_ORDERED
#undef TACO_KERNEL

struct Kernels {
    Kernel sum, minimum, maximum, product;
};

Kernels kernels_of(Type type) {
    switch (type) {
        case Type::float32: return {sum_float32, minimum_float32, maximum_float32, product_float32};
        case Type::float64: return {sum_float64, minimum_float64, maximum_float64, product_float64};
        case Type::int8: return {sum_uint8, minimum_int8, maximum_int8, product_uint8};
        case Type::int16: return {sum_uint16, minimum_int16, maximum_int16, product_uint16};
        case Type::int32: return {sum_uint32, minimum_int32, maximum_int32, product_uint32};
        case Type::int64: return {sum_uint64, minimum_int64, maximum_int64, product_uint64};
        case Type::boolean: return {either, both, either, both};
        default: return {sum_uint8, minimum_uint8, maximum_uint8, product_uint8};
    }
}

Kernel kernel_of(Type type, Reduction reduction) {
    const Kernels kernels = kernels_of(type);
    switch (reduction) {
        case Reduction::minimum: return kernels.minimum;
        case Reduction::maximum: return kernels.maximum;
        case Reduction::product: return kernels.product;
        default: return kernels.sum;
    }
}

template <typename T>
void divide_by(void* data, size_t count, int64_t divisor) {
    T* values = static_cast<T*>(data);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / divisor);
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void divide_floats(float* values,
                                                                                size_t count,
                                                                                float divisor) {
    for (size_t i = 0; i < count; ++i) values[i] /= divisor;
}

}  // namespace

void combine(Type type, Reduction reduction, void* out, const void* a, const void* b,
             size_t count) {
    kernel_of(type, reduction)(out, a, b, count);
}

void divide(Type type, void* data, size_t count, int64_t divisor) {
    switch (type) {
        case Type::float32:
            return divide_floats(static_cast<float*>(data), count, static_cast<float>(divisor));
        case Type::float64: {
            double* values = static_cast<double*>(data);
            for (size_t i = 0; i < count; ++i) values[i] /= static_cast<double>(divisor);
            return;
        }
        case Type::uint8: return divide_by<uint8_t>(data, count, divisor);
        case Type::int8: return divide_by<int8_t>(data, count, divisor);
        case Type::int16: return divide_by<int16_t>(data, count, divisor);
        case Type::int32: return divide_by<int32_t>(data, count, divisor);
        case Type::int64: return divide_by<int64_t>(data, count, divisor);
        default: return;
    }
}

void convert(Type to, void* out, Type from, const void* in, size_t count) {
    if (to == from) {
        if (out != in) std::memcpy(out, in, count * size_of(to));
    } else if (from == Type::float16) {
        float32_from_float16(static_cast<float*>(out), static_cast<const uint16_t*>(in), count);
    } else if (from == Type::bfloat16) {
        float32_from_bfloat16(static_cast<float*>(out), static_cast<const uint16_t*>(in), count);
    } else if (to == Type::float16) {
        float16_from_float32(static_cast<uint16_t*>(out), static_cast<const float*>(in), count);
    } else {
        bfloat16_from_float32(static_cast<uint16_t*>(out), static_cast<const float*>(in), count);
    }
}

void reduce(Type type, Reduction reduction, void* out, const void* const* inputs, size_t num_inputs,
            size_t count) {
    const Type accumulator = accumulator_of(type);
    const Kernel kernel = kernel_of(accumulator, reduction);
    const size_t in_size = size_of(type), out_size = size_of(accumulator);
    alignas(64) float widened[kBlock];
    for (size_t begin = 0; begin < count; begin += kBlock) {
        const size_t length = std::min(kBlock, count - begin);
        char* target = static_cast<char*>(out) + begin * out_size;
        const auto input = [&](size_t i) {
            return static_cast<const char*>(inputs[i]) + begin * in_size;
        };
        if (type == accumulator && num_inputs > 1) {
            kernel(target, input(0), input(1), length);
            for (size_t i = 2; i < num_inputs; ++i) kernel(target, target, input(i), length);
            continue;
        }
        convert(accumulator, target, type, input(0), length);
        for (size_t i = 1; i < num_inputs; ++i) {
            convert(accumulator, widened, type, input(i), length);
            kernel(target, target, widened, length);
        }
    }
}

}  // namespace taco::collective
