// Partition of a product into blocks of rows and panels that threads share.
#pragma once

#include "matmul/block.h"
#include "matmul/codes/grouped_int8.h"
#include "matmul/multiply_vectors.h"

namespace TACO_ISA {

#ifdef TACO_HAS_TILES
constexpr bool uses_tiles(DType type) { return type != DType::f32; }
#else
constexpr bool uses_tiles(DType) { return false; }
#endif

// Sums of a block that wait until all of them are known: vectors, 64 KB on the stack.
constexpr int64_t MAX_BLOCK_SUMS = 1024;
// Bytes of weights in a block when there are few rows: enough to hide the overhead of a block, few
// enough that threads end together.
constexpr int64_t BLOCK_BYTES = 256 * 1024, TILE_BLOCK_BYTES = 512 * 1024;
constexpr int64_t BLOCKS_PER_THREAD = 4;
// Where each block orders its rows first (codes/signed_rows.h), it has more panels; its sums are in
// memory, 256 KB.
constexpr int64_t ORDERED_BLOCK_BYTES = 2 * 1024 * 1024, MAX_ORDERED_SUMS = 4096;
// Every block begins at a multiple of this many panels, so that few passes have fewer panels than
// they could.
constexpr int64_t BLOCK_PANELS = 4;
// Most panels of a block on tiles, unless it computes range by range of k.
constexpr int64_t MOST_EVEN_PANELS = 32;

// Rows of a block on vectors: as many as stay in the L2 cache for one part of k.
constexpr int64_t VECTOR_BLOCK_ROWS = 96 / PASS_ROWS * PASS_ROWS;

// On tiles, a block has as many rows as leave about half of an L2 cache of 2 MB free: each block of
// rows reads all weights from memory.
constexpr int64_t QUAD_ROWS = 32, CACHED_ROWS = 256, MOST_CACHED_ROWS = 512;
constexpr int64_t CACHED_BYTES = 950 * 1024;
// Where the rows of a block have more bytes than this, it computes range by range of k, and its
// sums wait in memory. Not with many columns: their sums would take longer than the rows.
constexpr int64_t MOST_UNCUT_BYTES = 600 * 1024, RANGE_STEPS = 38;
constexpr int64_t FEW_ROWS = 128, RANGE_STEPS_OF_FEW = 76;
constexpr int64_t MOST_CUT_COLUMNS = 4096, MOST_CUT_PANELS = 64;

// When the sums of a block are finished.
enum class FinishedBy {
    block,  // all together
    quad,   // on tiles, each 32 rows of two panels as soon as they are known
};

struct Blocking {
    int64_t num_rows, rows, num_panels, panels;
    int64_t range_steps;  // on tiles, by quads: steps of a range of k
    bool on_tiles;

    Blocking(const Matrix& matrix, int64_t row_count, int64_t panel_count, int num_threads,
             FinishedBy finished_by)
        : num_rows(row_count),
          num_panels(panel_count),
          range_steps(matrix.panel_bytes() / (PANEL * PIECE_BYTES)),
          on_tiles(uses_tiles(matrix.type)) {
        const bool by_quads = on_tiles && finished_by == FinishedBy::quad;
        const int64_t row_bytes = padded_k(matrix.type, matrix.k) * operand_bytes(matrix.type);
        const int64_t most_rows = !on_tiles ? VECTOR_BLOCK_ROWS
                                  : by_quads && row_bytes * MOST_CACHED_ROWS <= CACHED_BYTES
                                      ? MOST_CACHED_ROWS
                                      : CACHED_ROWS;
        const int64_t even_rows = ceil_div(num_rows, ceil_div(num_rows, most_rows));
        rows = std::min(num_rows, round_up(even_rows, on_tiles ? QUAD_ROWS : PASS_ROWS));
        const bool is_cut = by_quads && matrix.n <= MOST_CUT_COLUMNS && cut_ranges(row_bytes);

        const bool orders_rows = !on_tiles && is_grouped_int8(matrix);
        const int64_t most_bytes = orders_rows && rows >= PASS_ROWS ? ORDERED_BLOCK_BYTES
                                   : by_quads                       ? TILE_BLOCK_BYTES
                                                                    : BLOCK_BYTES;
        const int64_t by_bytes = std::max<int64_t>(most_bytes / matrix.stored_panel_bytes(), 8);
        const int64_t by_thread = num_panels * row_blocks() / num_threads;
        if (by_quads) {
            // Where a block computes range by range of k, each reads the rows again.
            const int64_t most = is_cut ? MOST_CUT_PANELS : std::min(by_bytes, MOST_EVEN_PANELS);
            panels = even_panels(std::min(most, by_thread), num_threads);
            return;
        }
        const int64_t most_sums = orders_rows ? MAX_ORDERED_SUMS : MAX_BLOCK_SUMS;
        const int64_t by_sums = most_sums / round_up(rows, OPERAND_TILE_ROWS);
        const int64_t wanted = std::min({by_bytes, by_thread / BLOCKS_PER_THREAD, by_sums});
        panels = std::max<int64_t>(wanted / BLOCK_PANELS * BLOCK_PANELS, BLOCK_PANELS);
    }

    int64_t row_blocks() const { return ceil_div(num_rows, rows); }
    int64_t panel_blocks() const { return ceil_div(num_panels, panels); }
    int64_t count() const { return row_blocks() * panel_blocks(); }
    // On tiles, blocks of the same rows are adjacent, so that the rows stay in the cache. On
    // vectors, whose blocks have few rows, those of the same panels: then weights are read from
    // memory once.
    Range row_range(int64_t index) const {
        const int64_t begin = (on_tiles ? index / panel_blocks() : index % row_blocks()) * rows;
        return {begin, std::min(begin + rows, num_rows)};
    }
    Range panel_range(int64_t index) const {
        const int64_t begin = (on_tiles ? index % panel_blocks() : index / row_blocks()) * panels;
        return {begin, std::min(begin + panels, num_panels)};
    }

private:
    // Up to `most` panels, so that the thread with most blocks ends as early as it can. A block
    // takes a quarter of a panel longer than its panels.
    int64_t even_panels(int64_t most, int64_t num_threads) const {
        int64_t best = BLOCK_PANELS, least = INT64_MAX;
        for (int64_t size = BLOCK_PANELS; size <= std::max(most, BLOCK_PANELS);
             size += BLOCK_PANELS) {
            const int64_t num_blocks = row_blocks() * ceil_div(num_panels, size);
            const int64_t longest = ceil_div(num_blocks, num_threads) * (4 * size + 1);
            if (longest < least) {
                best = size;
                least = longest;
            }
        }
        return best;
    }
    // Chooses ranges of about equal length; returns whether there are several.
    bool cut_ranges(int64_t row_bytes) {
        if (rows * row_bytes <= MOST_UNCUT_BYTES) return false;
        const int64_t most_steps = rows <= FEW_ROWS ? RANGE_STEPS_OF_FEW : RANGE_STEPS;
        const int64_t num_ranges = ceil_div(range_steps, most_steps);
        range_steps = ceil_div(range_steps, num_ranges);
        return num_ranges > 1;
    }
};

}  // namespace TACO_ISA
