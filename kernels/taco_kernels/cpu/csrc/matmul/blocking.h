// Partition of a product into blocks of rows and panels that threads share.
#pragma once

#include "isa/quad_product.h"
#include "matmul/block.h"
#include "matmul/codes/grouped_int8.h"
#include "matmul/multiply_vectors.h"

namespace TACO_ISA {

#ifdef TACO_HAS_TILES
constexpr bool uses_tiles(DType type) { return type != DType::f32; }
#else
constexpr bool uses_tiles(DType) { return false; }
#endif

// Most vectors of sixteen sums of a block that wait until all of them are known: 64 KB on the
// stack.
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
constexpr int64_t MAX_EVEN_PANELS = 32;

// Rows of a block on vectors: as many as stay in the L2 cache for one part of k.
constexpr int64_t VECTOR_BLOCK_ROWS = 96 / PASS_ROWS * PASS_ROWS;

// On tiles, a block has up to 512 rows if these leave half of an L2 cache of 2 MB free, else up to
// 256: each block of rows reads all weights from memory.
constexpr int64_t TILE_BLOCK_ROWS = 256, MAX_TILE_BLOCK_ROWS = 512;
constexpr int64_t MAX_OPERAND_BYTES = 950 * 1024;
// Where the rows of a block have more bytes than this, it computes range by range of k, and its
// sums wait in memory. Not with many columns: their sums would take longer than the rows.
constexpr int64_t MAX_UNCUT_BYTES = 600 * 1024, RANGE_STEPS = 38;
constexpr int64_t MAX_FEW_ROWS = 128, RANGE_STEPS_OF_FEW = 76;
constexpr int64_t MAX_CUT_COLUMNS = 4096, MAX_CUT_PANELS = 64;

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
        rows = even_rows(by_quads, row_bytes);
        if (by_quads) {
            const bool is_cut = matrix.n <= MAX_CUT_COLUMNS && cut_ranges(row_bytes);
            panels = panels_by_quads(matrix, is_cut, num_threads);
        } else {
            panels = panels_by_blocks(matrix, num_threads);
        }
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
    // Blocks have about as many rows each.
    int64_t even_rows(bool by_quads, int64_t row_bytes) const {
        int64_t most = VECTOR_BLOCK_ROWS;
        if (on_tiles) {
            const bool are_short = row_bytes * MAX_TILE_BLOCK_ROWS <= MAX_OPERAND_BYTES;
            most = by_quads && are_short ? MAX_TILE_BLOCK_ROWS : TILE_BLOCK_ROWS;
        }
        const int64_t even = ceil_div(num_rows, ceil_div(num_rows, most));
        return std::min(num_rows, round_up(even, on_tiles ? QUAD_ROWS : PASS_ROWS));
    }

    int64_t panels_by_quads(const Matrix& matrix, bool is_cut, int num_threads) const {
        // Where a block computes range by range of k, each reads the rows again.
        const int64_t most = is_cut
                                 ? MAX_CUT_PANELS
                                 : std::min(panels_of(matrix, TILE_BLOCK_BYTES), MAX_EVEN_PANELS);
        return even_panels(std::min(most, panels_per_thread(num_threads)), num_threads);
    }

    int64_t panels_by_blocks(const Matrix& matrix, int num_threads) const {
        const bool orders_rows = !on_tiles && is_grouped_int8(matrix);
        const bool has_more = orders_rows && rows >= PASS_ROWS;
        const int64_t by_bytes = panels_of(matrix, has_more ? ORDERED_BLOCK_BYTES : BLOCK_BYTES);
        const int64_t by_thread = panels_per_thread(num_threads) / BLOCKS_PER_THREAD;
        const int64_t most_sums = orders_rows ? MAX_ORDERED_SUMS : MAX_BLOCK_SUMS;
        const int64_t by_sums = most_sums / round_up(rows, OPERAND_TILE_ROWS);
        const int64_t wanted = std::min({by_bytes, by_thread, by_sums});
        return std::max<int64_t>(wanted / BLOCK_PANELS * BLOCK_PANELS, BLOCK_PANELS);
    }

    // Panels of about as many bytes of weights.
    static int64_t panels_of(const Matrix& matrix, int64_t bytes) {
        return std::max<int64_t>(bytes / matrix.stored_panel_bytes(), 8);
    }
    int64_t panels_per_thread(int num_threads) const {
        return num_panels * row_blocks() / num_threads;
    }

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
        if (rows * row_bytes <= MAX_UNCUT_BYTES) return false;
        const int64_t most_steps = rows <= MAX_FEW_ROWS ? RANGE_STEPS_OF_FEW : RANGE_STEPS;
        const int64_t num_ranges = ceil_div(range_steps, most_steps);
        range_steps = ceil_div(range_steps, num_ranges);
        return num_ranges > 1;
    }
};

}  // namespace TACO_ISA
