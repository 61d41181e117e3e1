#include "collective/codec.h"

#include <cmath>
#include <cstring>

#include "collective/failure.h"
#include "collective/float16.h"

namespace taco::collective {
namespace {

constexpr uint8_t kFullGap = 255;
constexpr size_t kHeaderBytes = 8;
constexpr float kLargestFloat16 = 65504.0f;

// What float16 holds of a value.
uint16_t sent_as_float16(float value) {
    if (std::isfinite(value))
        value = std::fmin(std::fmax(value, -kLargestFloat16), kLargestFloat16);
    uint16_t half;
    float16_from_float32(&half, &value, 1);
    return half;
}

}  // namespace

size_t encoded_capacity(size_t count, size_t num_selected, bool as_float16) {
    return kHeaderBytes + count / kFullGap + 1 + num_selected * (as_float16 ? 3 : 5);
}

size_t encode(float* values, float* momentum, const std::vector<uint32_t>& indices, bool as_float16,
              char* out) {
    auto* gaps = reinterpret_cast<uint8_t*>(out) + kHeaderBytes;
    auto* next = gaps;
    size_t expected = 0;
    for (uint32_t index : indices) {
        size_t gap = index - expected;
        expected = index + size_t{1};
        for (; gap >= kFullGap; gap -= kFullGap) *next++ = kFullGap;
        *next++ = static_cast<uint8_t>(gap);
    }
    const uint32_t header[] = {static_cast<uint32_t>(indices.size()),
                               static_cast<uint32_t>(next - gaps)};
    std::memcpy(out, header, sizeof header);
    char* target = reinterpret_cast<char*>(next);
    for (uint32_t index : indices) {
        const float value = values[index];
        float sent = value;
        if (as_float16) {
            const uint16_t half = sent_as_float16(value);
            std::memcpy(target, &half, sizeof half);
            target += sizeof half;
            float32_from_float16(&sent, &half, 1);
        } else {
            std::memcpy(target, &value, sizeof value);
            target += sizeof value;
        }
        values[index] = std::isfinite(value) ? value - sent : 0.0f;
        if (momentum) momentum[index] = 0.0f;
    }
    return target - out;
}

Decoder::Decoder(const char* data, size_t bytes, size_t count, bool as_float16)
    : count_(count), index_(0), as_float16_(as_float16) {
    uint32_t header[2] = {};
    if (bytes >= kHeaderBytes) std::memcpy(header, data, sizeof header);
    num_left_ = header[0];
    if (bytes != kHeaderBytes + header[1] + num_left_ * (as_float16 ? 2 : 4)) {
        throw Failure(Code::broken, -1, "selected values arrived damaged: wrong length");
    }
    gaps_ = reinterpret_cast<const uint8_t*>(data) + kHeaderBytes;
    gaps_end_ = gaps_ + header[1];
    values_ = reinterpret_cast<const char*>(gaps_end_);
    if (num_left_ > 0) read_gap();
}

void Decoder::read_gap() {
    while (gaps_ < gaps_end_ && *gaps_ == kFullGap) {
        index_ += kFullGap;
        ++gaps_;
    }
    if (gaps_ == gaps_end_) {
        throw Failure(Code::broken, -1, "selected values arrived damaged: too few gaps");
    }
    index_ += *gaps_++;
    if (index_ >= count_) {
        throw Failure(Code::broken, -1, "selected values arrived damaged: index too large");
    }
}

void Decoder::add_until(size_t end, float* out, size_t begin) {
    while (num_left_ > 0 && index_ < end) {
        float value;
        if (as_float16_) {
            uint16_t half;
            std::memcpy(&half, values_, sizeof half);
            values_ += sizeof half;
            float32_from_float16(&value, &half, 1);
        } else {
            std::memcpy(&value, values_, sizeof value);
            values_ += sizeof value;
        }
        out[index_ - begin] += value;
        ++index_;
        if (--num_left_ > 0) read_gap();
    }
}

}  // namespace taco::collective
