// What is done beside the products of a quad: weights are fetched, and the rows of the quad before
// are finished.
#pragma once

#include "isa/quad_product.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// Weights to fetch beside a quad whose weights are one stream: a tile of each of two panels a step.
struct FetchTiles {
    const char* at;
    int64_t panel_bytes;  // to the second panel
    int64_t turn;         // the step from which on `next` is fetched
    const char* next;

    [[gnu::always_inline]] void operator()(int64_t step) {
        if (step == turn) at = next;
#pragma GCC unroll 16
        for (int64_t offset = 0; offset < TILE_BYTES; offset += 64) {
            __builtin_prefetch(at + offset, 0, 2);
            __builtin_prefetch(at + panel_bytes + offset, 0, 2);
        }
        at += TILE_BYTES;
    }
};

// Weights of a later part of two panels to fetch beside a quad: in each step some bytes of some
// streams.
//
// The hardware's prefetcher runs ahead in each page that is read in order. The slower a stream
// moves, the more of its lines have arrived in the L2 cache when they are fetched, and the shorter
// a fetch holds one of the few buffers that tile loads need too. So there are several streams.
struct FetchStreams {
    const char* at;               // of the first stream and panel
    int64_t panel_bytes;          // to the second panel
    int64_t streams;              // 0: nothing is fetched
    int64_t bytes = 64;           // of each stream in a step
    int64_t stream_distance = 0;  // bytes

    [[gnu::always_inline]] void operator()(int64_t) {
        const char* from = at;
        for (int64_t stream = 0; stream < streams; ++stream, from += stream_distance) {
            for (int64_t offset = 0; offset < bytes; offset += 64) {
                __builtin_prefetch(from + offset, 0, 2);
                __builtin_prefetch(from + panel_bytes + offset, 0, 2);
            }
        }
        at += bytes;
    }
};

// The same of one line of each panel, without a branch.
struct FetchLine {
    const char* at;
    int64_t panel_bytes;
    int64_t bytes;  // from the line of one step to that of the next

    // If nothing is to be fetched, every step prefetches `cached` again.
    FetchLine(const FetchStreams& fetch, const void* cached)
        : at(fetch.streams ? fetch.at : static_cast<const char*>(cached)),
          panel_bytes(fetch.streams ? fetch.panel_bytes : 0),
          bytes(fetch.streams * fetch.bytes) {}
    static bool fits(const FetchStreams& fetch) { return fetch.streams <= 1 && fetch.bytes == 64; }

    [[gnu::always_inline]] void operator()(int64_t) {
        __builtin_prefetch(at, 0, 2);
        __builtin_prefetch(at + panel_bytes, 0, 2);
        at += bytes;
    }
};

// The rows of a quad that are left to finish, and a fetch, beside the products of the next quad.
template <class Rows, class Fetch>
struct FinishAndFetch {
    Fetch fetch;
    Rows rows;
    int64_t row, end, rows_per_step;

    [[gnu::always_inline]] void operator()(int64_t step) {
        for (int64_t i = 0; i < rows_per_step && row < end; ++i) rows(row++);
        fetch(step);
    }
};

// Returns the first row that is left. Never inlined: its loop needs all registers.
template <class Tiles, bool TWO_ROWS, Streamed STREAMED, class Rows, class Fetch>
[[gnu::noinline]] int64_t multiply_beside(const QuadProduct& product,
                                          const FinishAndFetch<Rows, Fetch>& beside) {
    return multiply_quad<Tiles, TWO_ROWS, true, STREAMED>(product, beside).row;
}

// Weights are fetched, and nothing is finished, beside this product.
template <class Tiles, Streamed STREAMED, class Fetch>
[[gnu::noinline]] void sum_alone(int64_t rows, int64_t panels, const QuadProduct& product,
                                 const Fetch& fetch) {
    multiply_quad<Tiles, STREAMED>(rows, panels, product, fetch);
}

}  // namespace TACO_ISA

#endif
