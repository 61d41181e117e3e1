// Scratch memory of a thread, for kernels whose caller provides none.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "runtime/types.h"

namespace TACO_ISA {

// Returns memory of at least `bytes`, aligned to 64, which is valid until this thread's next call.
// The thread keeps it until it ends.
inline void* thread_memory(int64_t bytes) {
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    thread_local std::unique_ptr<void, Free> memory;
    thread_local int64_t size = 0;
    if (bytes > size) {
        memory.reset();
        size = 0;
        memory.reset(std::aligned_alloc(4096, size_t(round_up(bytes, 4096))));
        if (!memory) throw std::bad_alloc();
        size = round_up(bytes, 4096);
    }
    return memory.get();
}

}  // namespace TACO_ISA
