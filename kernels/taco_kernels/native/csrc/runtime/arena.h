// Scratch memory: a bump allocator over one piece of memory that the caller owns.
#pragma once

#include "runtime/types.h"

// Allocates arrays from one piece of memory. With null memory it only counts bytes.
class Arena {
public:
    explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}

    template <class T>
    T* take(int64_t count) {
        return static_cast<T*>(take_bytes(count * int64_t(sizeof(T))));
    }
    void* take_bytes(int64_t bytes) {
        char* array = memory_ ? memory_ + used_ : nullptr;
        used_ += round_up(bytes, ALIGNMENT);
        return array;
    }
    int64_t used() const { return used_; }

private:
    static constexpr int64_t ALIGNMENT = 64;
    char* memory_;
    int64_t used_ = 0;
};
