// Conversions between float32 and the 16-bit floats: round to nearest even, NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taco::collective {

void float32_from_float16(float* out, const uint16_t* in, size_t count);
void float16_from_float32(uint16_t* out, const float* in, size_t count);
void float32_from_bfloat16(float* out, const uint16_t* in, size_t count);
void bfloat16_from_float32(uint16_t* out, const float* in, size_t count);

// The variants without F16C: tests compare them with the processor's instructions.
void portable_float32_from_float16(float* out, const uint16_t* in, size_t count);
void portable_float16_from_float32(uint16_t* out, const float* in, size_t count);

}  // namespace taco::collective
