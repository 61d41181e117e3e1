// Greedy sampling of 9 to 32 rows on AMX tiles: the logits of four panels are ranked and summed up
// beside the tile products of the next four. Memory limits these products, so this takes no time.
//
// It gives the bits of rank_rows (argmax_rows.h).
#pragma once

#include "matmul/argmax_rows.h"
#include "matmul/multiply_tiles.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// With fewer rows, the bookkeeping of rows that wait to be ranked takes as long as it saves.
constexpr int64_t MIN_STREAMED_ROWS = 9;

// The rows of a part of the columns: four whole panels. `Item`: of sums, float or int32_t.
template <class Item>
class PartArgmax {
    static constexpr bool IS_INT8 = std::is_same_v<Item, int32_t>;

public:
    PartArgmax() = default;
    // `sums`: [panel][row][PANEL], and its panels `stride` apart. `best`: the greatest logit of
    // each row that this thread has ranked; NaN: none.
    PartArgmax(const Rows& rows, const Matrix& matrix, const Argmax& wanted, int64_t panel,
               Item* sums, int64_t stride, float* best)
        : sums_(sums),
          stride_(stride),
          column_(panel * PANEL),
          ranks_(wanted.ranks),
          best_(best),
          num_parts_(num_partial_sums(matrix.n)) {
        if (wanted.logprobs) parts_ = wanted.sums + panel / PARTIAL_SUM_PANELS;
        if (matrix.bias) bias_ = matrix.bias + column_;
        if constexpr (IS_INT8) {
            row_scales_ = rows.scales;
            scales_ = matrix.scales + column_;
            panels_ = static_cast<const int8_t*>(matrix.panel(panel));
            panel_bytes_ = matrix.panel_bytes();
        }
    }

    [[gnu::always_inline]] void operator()(int64_t row) const {
        if constexpr (IS_INT8) {
            if (__builtin_expect(row_scales_[row].num_outliers, 0)) {
                add_outliers(row_scales_[row], panels_, panel_bytes_, PARTIAL_SUM_PANELS,
                             sums_ + row * PANEL, stride_);
            }
        }
        F32 logits[PARTIAL_SUM_PANELS];
        read(row, logits);
        const PartialSum part = parts_ ? partial_sum(logits) : maximum_of(logits);
        if (parts_) parts_[row * num_parts_] = part;
        const bool is_less = part.maximum < best_[row];  // false without a best one
        if (__builtin_expect(!is_less || std::isnan(part.sum), 0)) rank(row);
    }

private:
    void read(int64_t row, F32 (&logits)[PARTIAL_SUM_PANELS]) const {
        const Item* sums = sums_ + row * PANEL;
#pragma GCC unroll 4
        for (int64_t i = 0; i < PARTIAL_SUM_PANELS; ++i) {
            if constexpr (IS_INT8) {
                logits[i] = scaled(sums + i * stride_, row_scales_[row].scale, scales_ + i * PANEL);
            } else {
                logits[i] = load(sums + i * stride_);
            }
        }
        if (!bias_) return;
        for (int64_t i = 0; i < PARTIAL_SUM_PANELS; ++i) {
            logits[i] = add(logits[i], load(bias_ + i * PANEL));
        }
    }

    // A sum of NaN if a logit is NaN or infinite.
    static PartialSum maximum_of(const F32 (&logits)[PARTIAL_SUM_PANELS]) {
        F32 greatest = set1(std::numeric_limits<float>::lowest()), products = zero();
        for (const F32& each : logits) {
            greatest = max(each, greatest);
            products = fma(each, zero(), products);
        }
        return {reduce_max(greatest), reduce_add(products)};
    }

    // Never inlined: few parts have a logit that is the best so far.
    [[gnu::noinline]] void rank(int64_t row) const {
        F32 logits[PARTIAL_SUM_PANELS];
        read(row, logits);
        uint64_t best = 0;
        for (int64_t i = 0; i < PARTIAL_SUM_PANELS; ++i) {
            float lanes[LANES];
            store(lanes, logits[i]);
            for (int64_t lane = 0; lane < LANES; ++lane) {
                const int64_t column = column_ + i * PANEL + lane;
                best = std::max(best,
                                std::isnan(lanes[lane]) ? NAN_RANK : rank_of(lanes[lane], column));
            }
        }
        best_[row] = value_of(best);
        raise(ranks_[row], best);
    }

    Item* sums_ = nullptr;
    int64_t stride_ = 0, column_ = 0;
    std::atomic<uint64_t>* ranks_ = nullptr;
    float* best_ = nullptr;
    PartialSum* parts_ = nullptr;  // of the first row; null: no log probabilities
    int64_t num_parts_ = 0;        // from one row to the next
    const float* bias_ = nullptr;
    const RowScale* row_scales_ = nullptr;
    const float* scales_ = nullptr;
    const int8_t* panels_ = nullptr;
    int64_t panel_bytes_ = 0;
};

// The products of a thread, and the part that they have left to rank.
template <class Tiles>
class ArgmaxStream {
    using Item = typename Tiles::Item;

public:
    ArgmaxStream(const Rows& rows, const Matrix& matrix, const Argmax& wanted)
        : rows_(rows),
          matrix_(matrix),
          wanted_(wanted),
          steps_(matrix.panel_bytes() / TILE_BYTES),
          stride_(round_up(rows.count, TILE_ROWS) * PANEL) {
        std::fill_n(best_, QUAD_ROWS, std::numeric_limits<float>::quiet_NaN());
    }

    // Multiplies whole parts. `next` is memory that is likely read afterwards.
    void run(Range panels, const void* next) {
        configure_quads(rows_.count);
        for (int64_t panel = panels.begin; panel < panels.end; panel += PARTIAL_SUM_PANELS) {
            Item* sums = sums_[turn_];
            turn_ ^= 1;
            const int64_t middle = panel + PARTIAL_SUM_PANELS / 2, end = panel + PARTIAL_SUM_PANELS;
            const int64_t per_step = ceil_div(end_ - row_, 2 * steps_);
            multiply(panel, sums, matrix_.panel(middle), per_step);
            multiply(middle, sums + PARTIAL_SUM_PANELS / 2 * stride_,
                     end < panels.end ? matrix_.panel(end) : next, per_step);
            finish();
            rest_ = PartArgmax<Item>(rows_, matrix_, wanted_, panel, sums, stride_, best_);
            row_ = 0;
            end_ = rows_.count;
        }
        release_tiles();
    }

    void finish() {
        for (; row_ < end_; ++row_) rest_(row_);
    }

private:
    // Two panels, and beside them rows that are left.
    void multiply(int64_t panel, Item* sums, const void* next, int64_t rows_per_step) {
        static_assert(PARTIAL_SUM_PANELS == 4);
        const auto* weights = static_cast<const char*>(matrix_.panel(panel));
        QuadProduct product{};
        product.rows = rows_.data;
        product.lower_rows = operand_offset(Tiles::TYPE, TILE_ROWS, rows_.stride, 0);
        product.panels = weights;
        product.panel_bytes = matrix_.panel_bytes();
        product.steps = steps_;
        product.to = {sums, TILE_BYTES, stride_ * int64_t(sizeof(Item))};
        const FetchTiles fetch{weights + STEPS_AHEAD * TILE_BYTES, product.panel_bytes,
                               std::max<int64_t>(steps_ - STEPS_AHEAD, 0),
                               static_cast<const char*>(next)};
        const FinishAndFetch<PartArgmax<Item>, FetchTiles> beside{fetch, rest_, row_, end_,
                                                                  rows_per_step};
        row_ = rows_.count > TILE_ROWS
                   ? multiply_beside<Tiles, true, Streamed::panels>(product, beside)
                   : multiply_beside<Tiles, false, Streamed::panels>(product, beside);
    }

    const Rows& rows_;
    const Matrix& matrix_;
    const Argmax& wanted_;
    const int64_t steps_, stride_;
    PartArgmax<Item> rest_;
    int64_t row_ = 0, end_ = 0;  // of `rest_`
    int turn_ = 0;
    float best_[QUAD_ROWS];
    alignas(64) Item sums_[2][PARTIAL_SUM_PANELS * QUAD_ROWS * PANEL];
};

// Whether `stream_argmax` can rank the columns.
inline bool streams_argmax(const Rows& rows, const Matrix& matrix, const Argmax& wanted) {
    const bool is_plain = wanted.transform.scale == 1 && wanted.transform.cap == 0;
    return rows.count >= MIN_STREAMED_ROWS && rows.count <= QUAD_ROWS && uses_tiles(matrix.type) &&
           !matrix.parts && matrix.segments == 1 && is_plain && !wanted.masks.of_row;
}

// Ranks the columns, block by block. finish(block, sums): finishes the last columns if these are no
// whole part.
template <class Tiles, class Finish>
void stream_argmax(Thread& thread, const Rows& rows, const Matrix& matrix, const Argmax& wanted,
                   const Blocking& blocking, Finish finish) {
    ArgmaxStream<Tiles> stream(rows, matrix, wanted);
    const int64_t whole = matrix.n / PARTIAL_SUM_TOKENS * PARTIAL_SUM_PANELS;
    share_blocks(thread, matrix, blocking, wanted.masks, [&](int64_t index, const void* next) {
        Block block = block_of(rows, matrix, blocking, index, next);
        const int64_t end = std::min(block.panels.end, whole);
        stream.run({block.panels.begin, end}, end < block.panels.end ? matrix.panel(end) : next);
        if (end == block.panels.end) return;
        block.panels.begin = end;
        block.data = static_cast<const char*>(matrix.panel(end));
        alignas(64) typename Tiles::Item sums[PARTIAL_SUM_PANELS * QUAD_ROWS * PANEL];
        finish(block, sums_of(matrix, block, sums));
    });
    stream.finish();
    thread.barrier();
}

}  // namespace TACO_ISA

#endif
