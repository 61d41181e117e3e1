// Finds NaNs among 8-bit floats.
#pragma once

#include <algorithm>
#include <cstdint>

// Whether one of the E4M3 floats is NaN: 0x7f or 0xff.
inline bool has_e4m3_nans(const uint8_t* floats, int64_t count) {
    constexpr int64_t SLICE = 4096;
    for (int64_t begin = 0; begin < count; begin += SLICE) {
        const int64_t end = std::min(begin + SLICE, count);
        uint8_t found = 0;
        for (int64_t i = begin; i < end; ++i) found |= uint8_t((floats[i] & 0x7f) == 0x7f);
        if (found) return true;
    }
    return false;
}
