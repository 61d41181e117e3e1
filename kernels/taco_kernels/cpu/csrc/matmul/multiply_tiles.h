// The sums of a block on AMX tiles.
//
//     for each range of k whose rows an L2 cache holds     (one, unless k is long)
//       for each two panels
//         for each part of k whose weights an L1 cache holds
//           for each 32 rows: a quad of sums over the part
//
// Rows pass through the L1 cache (tileloaddt1); weights stay in it while all rows use them, and the
// next part's are fetched meanwhile, a slice beside each 32 rows. Up to 32 rows need no parts: the
// sums stay in tiles over all k. There the weights pass through, as one stream, and rows may stay.
//
// A part of a matrix of codes is decoded before its quads, which then find it in the L1 cache; so
// there are parts for any number of rows.
//
// Sums go to memory and back exactly, and a tile product adds in the order of k: ranges, parts and
// blocks change no bit. Segments of k (matrix.h) are whole parts and ranges.
#pragma once

#include "matmul/blocking.h"
#include "matmul/codes/multiply_codes.h"
#include "matmul/outlier_parts.h"
#include "matmul/quad_beside.h"
#include "matmul/quad_rows.h"
#include "runtime/thread_memory.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// Steps of a part: 32 KB of two panels, in an L1 cache of 48 KB.
constexpr int64_t PART_TILE_STEPS = 16;
// Steps that a stream of weights is fetched ahead: 10 KB of each panel.
constexpr int64_t STEPS_AHEAD = 10;
constexpr int64_t LINES_OF_TILE = TILE_BYTES / 64;
// Streams of a part that is fetched beside the one before.
constexpr int64_t MAX_STREAMS = 4;

// In place of BlockRows: the caller finishes the block's sums.
struct NoRows {
    static constexpr bool IS_LIGHT = false;
    static constexpr RowEpilogue KIND = RowEpilogue::other;
};

// Computes one block. `Rows` finishes the rows of a quad: BlockRows or NoRows.
template <class Tiles, class Rows, bool HAS_SEGMENTS>
class TileBlock {
    using Item = typename Tiles::Item;
    using LightRows = QuadRows<Rows::KIND, Item, HAS_SEGMENTS>;
    static constexpr bool FINISHES = !std::is_same_v<Rows, NoRows>;
    static constexpr bool IS_LIGHT = Rows::IS_LIGHT;
    static constexpr int64_t ITEM_BYTES = sizeof(Item);

public:
    // `sums`: of the whole block with NoRows or with several ranges of k, else of two panels; as
    // many again for each level of a tree of segments.
    TileBlock(const Block& block, const Product* product, Item* sums, int64_t range_steps,
              const OutlierParts& outliers)
        : block_(block),
          product_(product),
          sums_(sums),
          count_(block.rows.size()),
          steps_(block.steps / LINES_OF_TILE),
          segment_steps_(steps_ / (HAS_SEGMENTS ? product->matrix.segments : 1)),
          range_steps_(range_steps),
          group_bytes_(operand_offset(Tiles::TYPE, TILE_ROWS, block.operand_stride, 0)),
          keeps_all_(!FINISHES || range_steps < steps_),
          outliers_(outliers) {}

    void run() {
        configure_quads(count_);
        if (count_ <= QUAD_ROWS && !block_.codes) {
            stream_panels();
        } else {
            for (int64_t step = 0, end; step < steps_; step = end) {
                end = std::min(step + range_steps_, steps_);
                if (range_steps_ < segment_steps_) {
                    end = std::min(end, round_up(step + 1, segment_steps_));
                } else {
                    end = end / segment_steps_ * segment_steps_;
                }
                sum_range({step, end});
            }
        }
        finish_rest();
        release_tiles();
    }

private:
    const char* weights(int64_t panel, int64_t step) const {
        return block_.data + panel * block_.panel_bytes + step * TILE_BYTES;
    }

    // Up to two panels over the steps of a part.
    struct Part {
        int64_t panel, num_panels;
        Range steps;
        bool ends;            // a segment, or all k
        bool adds_outliers;   // `light` adds those of this part to the kept sums
        bool is_light;        // `light` finishes its quads
        Item* slot;           // where the sums of the block's first row are kept
        QuadProduct product;  // of the block's first rows
        LightRows light;
        SegmentTree tree;
    };

    // `outliers`: of each row, those in the part; null: all.
    Part part_of(int64_t panel, Range steps, const OutlierRange* outliers) {
        Part part{};
        part.panel = panel;
        part.num_panels = std::min<int64_t>(2, block_.panels.size() - panel);
        part.steps = steps;
        part.ends = FINISHES && steps.end % segment_steps_ == 0;
        const int64_t stride = block_.sums_stride();
        part.slot = sums_ + (keeps_all_ ? panel : 0) * stride;
        QuadProduct& product = part.product;
        product.rows = static_cast<const char*>(block_.operands) + steps.begin * TILE_BYTES;
        product.lower_rows = group_bytes_;
        product.panels =
            block_.codes ? reinterpret_cast<const char*>(decoded_[0]) : weights(panel, steps.begin);
        product.panel_bytes = block_.codes ? sizeof decoded_[0] : block_.panel_bytes;
        product.steps = steps.size();
        product.to = {part.slot, TILE_BYTES, stride * ITEM_BYTES};
        if (steps.begin % segment_steps_) product.from = product.to;
        if constexpr (HAS_SEGMENTS) {
            if (part.ends) part.tree = tree_of(part.slot, steps.end);
        }
        if constexpr (IS_LIGHT) {
            const int64_t first = block_.panels.begin + panel;
            const Range panels = {first, first + part.num_panels};
            if ((part.ends || outliers) && LightRows::fits(*product_, panels)) {
                part.is_light = part.ends;
                part.adds_outliers = !part.ends;
                part.light = LightRows(*product_, block_.rows, panels);
                part.light.set_tree(part.tree);
                part.light.set_part(outliers, part.ends);
            }
        }
        return part;
    }

    // The tree of the sums that are kept in `slot`, with the segment that ends at a step.
    SegmentTree tree_of(float* slot, int64_t end) const {
        SegmentTree tree;
        tree.panel_stride = block_.sums_stride();
        tree.level_size = (keeps_all_ ? block_.panels.size() : 2) * tree.panel_stride;
        tree.levels = slot + tree.level_size;
        tree.index = end / segment_steps_ - 1;
        tree.is_last = end == steps_;
        return tree;
    }

    // Up to 32 rows: all k at once.
    void stream_panels() {
        const int64_t num_panels = block_.panels.size();
        for (int64_t panel = 0; panel < num_panels; panel += 2) {
            const bool is_last = panel + 2 >= num_panels;
            const char* next = is_last ? block_.next : weights(panel + 2, 0);
            for (int64_t step = 0; step < steps_; step += segment_steps_) {
                const int64_t turn = std::max<int64_t>(steps_ - STEPS_AHEAD - step, 0);
                const FetchTiles fetch{weights(panel, step + STEPS_AHEAD), block_.panel_bytes, turn,
                                       next};
                const Part part = part_of(panel, {step, step + segment_steps_}, nullptr);
                sum_quad<Streamed::panels>(part, 0, fetch);
            }
        }
    }

    void sum_range(Range range) {
        // Parts are all alike, and none is in two segments.
        const int64_t piece_steps = std::min(range.size(), segment_steps_);
        const int64_t parts = ceil_div(piece_steps, PART_TILE_STEPS);
        const int64_t num_panels = block_.panels.size();
        const int64_t num_parts = range.size() / piece_steps * parts;
        const int64_t num_groups = ceil_div(count_, QUAD_ROWS);
        // The next part is fetched beside all groups.
        const int64_t lines = ceil_div(LINES_OF_TILE, num_groups);
        const int64_t streams = std::min(lines, MAX_STREAMS);
        const int64_t fetched_bytes = ceil_div(lines, streams) * 64;
        const auto steps_of = [&](int64_t index) {
            const int64_t piece = range.begin + index / parts * piece_steps, part = index % parts;
            return Range{piece + piece_steps * part / parts,
                         piece + piece_steps * (part + 1) / parts};
        };
        // With several parts, and so several groups of rows, each part adds its own outliers.
        bool has_parts = false;
        if constexpr (FINISHES && Tiles::IS_INT8) {
            finish_rest();  // which reads the parts of the range before
            const bool is_all = num_parts == 1 && range.size() == steps_;
            has_parts = !is_all && outliers_.find(num_parts, [&](int64_t index) {
                const Range steps = steps_of(index);
                return Range{steps.begin * PIECE_BYTES, steps.end * PIECE_BYTES};
            });
        }
        for (int64_t panel = 0; panel < num_panels; panel += 2) {
            for (int64_t index = 0; index < num_parts; ++index) {
                const Range steps = steps_of(index);
                const OutlierRange* outliers = has_parts ? outliers_.of(index) : nullptr;
                const char* next = index + 1 < num_parts    ? weights(panel, steps.end)
                                   : panel + 2 < num_panels ? weights(panel + 2, range.begin)
                                   : range.end < steps_     ? weights(0, range.end)
                                                            : block_.next;
                if (block_.codes) decode(panel, steps);
                const Part part = part_of(panel, steps, outliers);
                const int64_t stream_bytes = round_up(steps.size() * TILE_BYTES / streams, 64);
                for (int64_t group = 0; group < num_groups; ++group) {
                    const int64_t fetched = group * steps.size() * fetched_bytes;
                    const bool is_needed = !block_.codes && fetched < stream_bytes;
                    const FetchStreams fetch{next + fetched, block_.panel_bytes,
                                             is_needed ? streams : 0, fetched_bytes, stream_bytes};
                    sum_quad<Streamed::rows>(part, group * QUAD_ROWS, fetch);
                }
            }
        }
    }

    // Decodes a part of up to two panels.
    void decode(int64_t panel, Range part) {
        const int64_t first = block_.first_step;
        const Range steps = {first + part.begin * LINES_OF_TILE, first + part.end * LINES_OF_TILE};
        const int64_t end = std::min(panel + 2, block_.panels.size());
        for (int64_t at = panel; at < end; ++at) {
            const CodePart& of = block_.codes->part_of(block_.panels.begin + at);
            decode_steps(of, of.panel(block_.panels.begin + at), steps, decoded_[at - panel]);
        }
    }

    // Adds a part to the sums of up to 32 rows.
    template <Streamed STREAMED, class Fetch>
    void sum_quad(const Part& part, int64_t row, const Fetch& fetch) {
        const int64_t rows = std::min(QUAD_ROWS, count_ - row);
        QuadProduct product = part.product;
        product.rows = static_cast<const char*>(product.rows) + row / TILE_ROWS * group_bytes_;
        Item* kept = part.slot + row * PANEL;
        if (product.from.data) product.from.data = kept;
        product.to.data = kept;
        if (!part.ends) {
            multiply_and_finish<STREAMED>(rows, part.num_panels, product, fetch);
            if (part.adds_outliers) {
                rest_ = {part.light, row, row + rows};
                rest_.rows.set_sums(kept, row, block_.sums_stride());
            }
            return;
        }
        Item* sums = quads_[turn_];
        turn_ ^= 1;
        const int64_t stride = round_up(rows, OPERAND_TILE_ROWS) * PANEL;
        product.to.data = sums;
        product.to.beside = stride * ITEM_BYTES;
        multiply_and_finish<STREAMED>(rows, part.num_panels, product, fetch);
        if (part.is_light) {
            rest_ = {part.light, row, row + rows};
            rest_.rows.set_sums(sums, row, stride);
        } else {
            finish_heavy(part, row, rows, sums);
        }
    }

    // Finishes the rows of a quad whose epilogue has no light form.
    __attribute__((noinline)) void finish_heavy(const Part& part, int64_t row, int64_t rows,
                                                Item* sums) {
        if constexpr (FINISHES) {
            const int64_t first_row = block_.rows.begin + row;
            const int64_t first_panel = block_.panels.begin + part.panel;
            Block quad = block_;
            quad.rows = {first_row, first_row + rows};
            quad.panels = {first_panel, first_panel + part.num_panels};
            const auto finish_all = [&](const auto& all) {
                for (int64_t i = quad.rows.begin; i < quad.rows.end; ++i) all(i);
            };
            const Rows all(*product_, quad, sums);
            if constexpr (HAS_SEGMENTS) {
                finish_all(SegmentRows<Rows>(all, quad, sums, part.tree, row));
            } else {
                finish_all(all);
            }
        }
    }

    // One quad's products, and beside them, if that is the common form, the rest of the quad
    // before.
    template <Streamed STREAMED, class Fetch>
    void multiply_and_finish(int64_t rows, int64_t panels, const QuadProduct& product,
                             const Fetch& fetch) {
        if constexpr (IS_LIGHT) {
            const bool is_whole = rows > TILE_ROWS && panels == 2;
            const bool is_upper = STREAMED == Streamed::panels && panels == 2;
            if (is_whole || is_upper) {
                const int64_t per_step = ceil_div(rest_.end - rest_.row, product.steps);
                const auto beside = [&](const auto& fetched) {
                    return FinishAndFetch<LightRows, std::decay_t<decltype(fetched)>>{
                        fetched, rest_.rows, rest_.row, rest_.end, per_step};
                };
                if constexpr (STREAMED == Streamed::panels) {
                    rest_.row =
                        is_whole ? multiply_beside<Tiles, true, STREAMED>(product, beside(fetch))
                                 : multiply_beside<Tiles, false, STREAMED>(product, beside(fetch));
                } else if (FetchLine::fits(fetch)) {
                    rest_.row = multiply_beside<Tiles, true, STREAMED>(
                        product, beside(FetchLine(fetch, product.panels)));
                } else {
                    rest_.row =
                        multiply_quad<Tiles, true, true, STREAMED>(product, beside(fetch)).row;
                }
                return;
            }
        }
        finish_rest();
        sum_alone<Tiles, STREAMED>(rows, panels, product, fetch);
    }

    __attribute__((noinline)) void finish_rest() {
        if constexpr (IS_LIGHT) {
            for (; rest_.row < rest_.end; ++rest_.row) rest_.rows(rest_.row);
        }
    }

    struct Rest {
        LightRows rows;
        int64_t row = 0, end = 0;  // those that are left
    };

    const Block& block_;
    const Product* product_;
    Item* const sums_;
    const int64_t count_, steps_, segment_steps_, range_steps_, group_bytes_;
    const bool keeps_all_;
    OutlierParts outliers_;
    Rest rest_;
    int turn_ = 0;
    alignas(64) Item quads_[2][QUAD_ROWS * 2 * PANEL];
    alignas(64) bf16 decoded_[2][PART_TILE_STEPS * TILE_BYTES / 2];  // a part of two panels
};

// Computes the sums of a block.
template <class Tiles>
void sum_on_tiles(const Block& block, typename Tiles::Item* sums) {
    const OutlierParts none(nullptr, nullptr, 0);
    TileBlock<Tiles, NoRows, false>(block, nullptr, sums, block.steps / LINES_OF_TILE, none).run();
}

// Computes a block of a product, range by range of k, and writes its results.
inline void multiply_on_tiles(const Product& product, const Block& block, int64_t range_steps) {
    const Matrix& matrix = product.matrix;
    const bool keeps_all = range_steps < block.steps / LINES_OF_TILE;
    const int64_t panels = keeps_all ? block.panels.size() : 2;
    int64_t num_sums = 1;
    for (int64_t segments = matrix.segments; segments > 1; segments /= 2) ++num_sums;
    const int64_t sums_bytes = num_sums * panels * block.sums_stride() * 4;
    const bool is_int8 = matrix.type == DType::i8;
    const int64_t count = is_int8 ? block.rows.size() : 0;
    const int64_t outlier_bytes =
        OutlierParts::bytes(count, ceil_div(range_steps, PART_TILE_STEPS));
    char* memory = static_cast<char*>(thread_memory(sums_bytes + outlier_bytes));
    const OutlierParts outliers(memory + sums_bytes,
                                is_int8 ? product.rows.scales + block.rows.begin : nullptr, count);
    const auto run = [&](auto tiles, auto rows, auto has_segments) {
        using Tiles = decltype(tiles);
        using Block = TileBlock<Tiles, decltype(rows), has_segments>;
        auto* sums = reinterpret_cast<typename Tiles::Item*>(memory);
        Block(block, &product, sums, range_steps, outliers).run();
    };
    with_row_epilogue(product, [&](auto kind) {
        const BlockRows<kind> rows;
        if (is_int8) return run(Int8Tiles(), rows, std::false_type());
        if (matrix.segments > 1) return run(Bf16Tiles(), rows, std::true_type());
        run(Bf16Tiles(), rows, std::false_type());
    });
}

}  // namespace TACO_ISA

#endif
