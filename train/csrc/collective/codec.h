// Selected values as bytes: gaps between indices, about one byte each, and float32 or float16.
//
// Layout: number of values (uint32), bytes of gaps (uint32), gaps, values. A gap is the number of
// indices in between, as bytes of 255 and one smaller byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace taco::collective {

// Bytes that `num_selected` of `count` values take at most.
size_t encoded_capacity(size_t count, size_t num_selected, bool as_float16);

// Moves the values at `indices` (ascending) into `out`: what float16 cannot express stays in
// `values`, so that sent + left = what was there, exactly. Finite values beyond float16's range are
// sent as its largest. `momentum` is cleared there, unless it is null. Returns the bytes.
size_t encode(float* values, float* momentum, const std::vector<uint32_t>& indices, bool as_float16,
              char* out);

// Reads one message, whose indices are below `count`.
class Decoder {
public:
    // Throws Failure: the bytes are no message.
    Decoder(const char* data, size_t bytes, size_t count, bool as_float16);

    // Adds the values whose indices are below `end`, from where the last call ended:
    // out[index - begin] += value. Throws Failure: an index is beyond the shard.
    void add_until(size_t end, float* out, size_t begin);

private:
    void read_gap();

    const uint8_t* gaps_;
    const uint8_t* gaps_end_;
    const char* values_;
    size_t num_left_;
    size_t count_;
    size_t index_;  // of the next value
    bool as_float16_;
};

}  // namespace taco::collective
