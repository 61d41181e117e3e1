// Products of codes with int8 activations on AMX tiles.
//
//     for each range of k whose rows an L2 cache holds     (one, unless k is long)
//       for each two panels
//         for each part of k whose weights an L1 cache holds: codes are decoded to int8, once
//           for each 32 rows, for each group of the part: a quad of int32 sums
//
// The sums of a quad go to memory, and are scaled and added to the float sums of the groups before
// beside the products of the next quad.
#pragma once

#include "matmul/codes/grouped_int8.h"
#include "matmul/multiply_tiles.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// Some steps of up to two panels: int8 as tiles take it, and the scales of their groups.
class DecodedPart {
public:
    // The tiles of a panel, one for each step.
    const int8_t* tiles(int64_t panel) const { return tiles_[panel]; }
    // Scales of a group, counted from the first of the part.
    const float* scales(int64_t panel, int64_t group) const { return scales_[panel][group]; }

    // Decodes steps of a panel, which begin a group or are in one.
    void decode(const PanelGroups& groups, int64_t panel, Range steps) {
        int8_t* out = tiles_[panel];
        const int64_t group_steps = groups.steps(), first = steps.begin / group_steps;
        for (int64_t step = steps.begin, end; step < steps.end; step = end) {
            const int64_t group = step / group_steps, begin = group * group_steps;
            end = std::min(begin + group_steps, steps.end);
            store(scales_[panel][group - first], groups.scales(group).scale);
            groups.decode(group, {step - begin, end - begin}, out);
            out += (end - step) * TILE_BYTES;
        }
    }

private:
    alignas(64) int8_t tiles_[2][PART_TILE_STEPS * TILE_BYTES];
    alignas(64) float scales_[2][PART_TILE_STEPS][PANEL];
};

// Where the sums of a quad are while its groups are added up: [panel][row][PANEL].
struct GroupSums {
    int32_t* quad;  // of the last group; its panels are `quad_stride` apart
    int64_t quad_stride;
    float* sums;  // of the groups before; `sums_stride` apart
    int64_t sums_stride;
    const float* scales[2];  // of the last group
    int64_t first_row, num_panels;
    bool is_first, is_last;
};

// Scales the sums of a group, and adds them to those of the groups before. After the last group,
// the sums of a row replace the quad's, and `Rows` finishes it.
template <class Rows>
class GroupRows {
public:
    static constexpr bool FINISHES = !std::is_same_v<Rows, NoRows>;
    static constexpr bool IS_LIGHT = Rows::IS_LIGHT || !FINISHES;

    GroupRows() = default;
    GroupRows(const Rows& rows, const GroupSums& at) : rows_(rows), at_(at) {}

    void operator()(int64_t row) const {
        const int64_t offset = (row - at_.first_row) * PANEL;
        const bool is_finished = FINISHES && at_.is_last;
        for (int64_t panel = 0; panel < at_.num_panels; ++panel) {
            int32_t* quad = at_.quad + panel * at_.quad_stride + offset;
            float* sums = at_.sums + panel * at_.sums_stride + offset;
            const F32 before = at_.is_first ? zero() : load(sums);
            const F32 sum = fma(to_float(load_i32(quad)), load(at_.scales[panel]), before);
            store(is_finished ? reinterpret_cast<float*>(quad) : sums, sum);
        }
        if constexpr (FINISHES) {
            if (is_finished) rows_(row);
        }
    }

private:
    Rows rows_;
    GroupSums at_ = {};
};

// Memory of a block beside its results.
struct GroupedMemory {
    float* sums;           // of two panels, or of all that a block has
    int32_t* kept;         // likewise, of groups that are longer than a part
    DecodedPart* decoded;  // [2]: scales are read while the next part is decoded

    GroupedMemory(const Block& block, int64_t panels) {
        const int64_t size = panels * block.sums_stride();
        auto* memory = static_cast<char*>(thread_memory(2 * size * 4 + 2 * sizeof(DecodedPart)));
        decoded = reinterpret_cast<DecodedPart*>(memory);
        sums = reinterpret_cast<float*>(memory + 2 * sizeof(DecodedPart));
        kept = reinterpret_cast<int32_t*>(sums + size);
    }
};

// Computes one block. `Rows` finishes rows: BlockRows, or NoRows.
template <class Rows>
class GroupedTileBlock {
    using Grouped = GroupRows<Rows>;

public:
    // `memory`: of the whole block with NoRows or with several ranges of k, else of two panels.
    GroupedTileBlock(const Matrix& matrix, const Block& block, const Product* product,
                     const GroupedMemory& memory, int64_t range_steps)
        : matrix_(matrix),
          block_(block),
          product_(product),
          memory_(memory),
          count_(block.rows.size()),
          num_quads_(ceil_div(count_, QUAD_ROWS)),
          steps_(ceil_div(matrix.k, STEP_K)),
          range_steps_(range_steps),
          row_group_bytes_(operand_offset(DType::i8, TILE_ROWS, block.operand_stride, 0)),
          keeps_all_(!Grouped::FINISHES || range_steps < steps_) {}

    void run() {
        configure_quads(count_);
        for (int64_t step = 0; step < steps_; step += range_steps_) {
            sum_range({step, std::min(step + range_steps_, steps_)});
        }
        finish_rest();
        release_tiles();
    }

private:
    PanelGroups groups_of(int64_t panel) const { return {matrix_.part_of(panel), panel}; }

    // Panels from one on that are computed together: those of two parts may have unlike groups.
    int64_t width_at(int64_t panel) const {
        return panel + 1 < block_.panels.end &&
                       groups_of(panel).steps() == groups_of(panel + 1).steps()
                   ? 2
                   : 1;
    }

    // The last step of a part that begins at a step: whole groups, unless they are long.
    static int64_t part_end(int64_t begin, int64_t group_steps, int64_t range_end) {
        const int64_t steps = group_steps < PART_TILE_STEPS
                                  ? PART_TILE_STEPS / group_steps * group_steps
                                  : PART_TILE_STEPS;
        return std::min(begin + steps, range_end);
    }

    void sum_range(Range range) {
        for (int64_t panel = block_.panels.begin, width; panel < block_.panels.end;
             panel += width) {
            width = width_at(panel);
            const int64_t group_steps = groups_of(panel).steps();
            for (int64_t step = range.begin, end; step < range.end; step = end) {
                end = part_end(step, group_steps, range.end);
                decoded_ = memory_.decoded + part_turn_;
                part_turn_ ^= 1;
                for (int64_t i = 0; i < width; ++i) {
                    decoded_->decode(groups_of(panel + i), i, {step, end});
                }
                const FetchStreams fetch = fetch_of({panel, panel + width}, {step, end}, range);
                for (int64_t quad = 0; quad < num_quads_; ++quad) {
                    sum_part({panel, panel + width}, quad, {step, end}, fetch);
                }
            }
        }
    }

    // What is read after a part: as many bytes of each of two panels in each step of all quads.
    FetchStreams fetch_of(Range panels, Range part, Range range) const {
        FetchStreams fetch{};
        Range next_part = {part.end, range.end};
        int64_t panel = panels.begin;
        if (part.end == range.end) {
            panel = panels.end < block_.panels.end ? panels.end : block_.panels.begin;
            next_part = panels.end < block_.panels.end ? range : Range{range.end, steps_};
        }
        const int64_t size = std::min(part.size(), next_part.size());
        if (size == 0) {
            fetch.at = block_.next;
            return fetch;
        }
        const PanelGroups first = groups_of(panel);
        fetch.at = first.at(next_part.begin);
        if (panel + 1 < block_.panels.end) {
            fetch.panel_bytes = groups_of(panel + 1).at(next_part.begin) - fetch.at;
        }
        const int64_t bytes = first.at(next_part.begin + size) - fetch.at;
        fetch.streams = 1;
        fetch.bytes = 64 * ceil_div(bytes, 64 * part.size() * num_quads_);
        return fetch;
    }

    // Adds a part to the sums of up to 32 rows with up to two panels, group by group.
    void sum_part(Range panels, int64_t index, Range part, const FetchStreams& fetch) {
        const int64_t row = index * QUAD_ROWS, stride = block_.sums_stride();
        const int64_t rows = std::min(QUAD_ROWS, count_ - row);
        const int64_t slot =
            (keeps_all_ ? panels.begin - block_.panels.begin : 0) * stride + row * PANEL;
        const QuadSums kept{memory_.kept + slot, TILE_BYTES, stride * 4};
        const int64_t group_steps = groups_of(panels.begin).steps();
        Block quad = block_;
        quad.rows = {block_.rows.begin + row, block_.rows.begin + row + rows};
        quad.panels = panels;
        for (int64_t step = part.begin, end; step < part.end; step = end) {
            const int64_t group = step / group_steps, begin = group * group_steps;
            const int64_t group_end = std::min(begin + group_steps, steps_);
            end = std::min(group_end, part.end);
            QuadProduct product{};
            product.rows = static_cast<const char*>(block_.operands) +
                           row / TILE_ROWS * row_group_bytes_ + step * TILE_BYTES;
            product.lower_rows = row_group_bytes_;
            product.panels = decoded_->tiles(0) + (step - part.begin) * TILE_BYTES;
            product.panel_bytes = PART_TILE_STEPS * TILE_BYTES;
            product.steps = end - step;
            if (step > begin) product.from = kept;
            product.to = kept;
            if (end == group_end) {
                product.to = {quads_[turn_], TILE_BYTES, quad.sums_stride() * 4};
            }
            FetchStreams own = fetch;
            own.at += (index * part.size() + step - part.begin) * fetch.bytes;
            multiply_and_finish(rows, panels.size(), product, own);
            if (end < group_end) continue;
            GroupSums at{};
            at.quad = quads_[turn_];
            at.quad_stride = quad.sums_stride();
            at.sums = memory_.sums + slot;
            at.sums_stride = stride;
            for (int64_t i = 0; i < panels.size(); ++i) {
                at.scales[i] = decoded_->scales(i, group - part.begin / group_steps);
            }
            at.first_row = quad.rows.begin;
            at.num_panels = panels.size();
            at.is_first = group == 0;
            at.is_last = end == steps_;
            rest_ = {rows_of(quad, at), quad.rows.begin, quad.rows.end};
            turn_ ^= 1;
            if (!Grouped::IS_LIGHT) finish_rest();
        }
    }

    Grouped rows_of(const Block& quad, const GroupSums& at) {
        if constexpr (Grouped::FINISHES) {
            return {Rows(*product_, quad, quads_[turn_]), at};
        } else {
            return {Rows(), at};
        }
    }

    // One quad's products, and beside them, if that is the common form, the rest of the quad
    // before.
    void multiply_and_finish(int64_t rows, int64_t panels, const QuadProduct& product,
                             const FetchStreams& fetch) {
        if constexpr (Grouped::IS_LIGHT) {
            if (rows > TILE_ROWS && panels == 2) {
                const int64_t per_step = ceil_div(rest_.end - rest_.row, product.steps);
                FinishAndFetch<Grouped, FetchStreams> beside{fetch, rest_.rows, rest_.row,
                                                             rest_.end, per_step};
                beside = multiply_quad<Int8Tiles, true, true, Streamed::rows>(product, beside);
                rest_.row = beside.row;
                return;
            }
        }
        finish_rest();
        sum_alone<Int8Tiles, Streamed::rows>(rows, panels, product, fetch);
    }

    void finish_rest() {
        for (; rest_.row < rest_.end; ++rest_.row) rest_.rows(rest_.row);
    }

    struct Rest {
        Grouped rows;
        int64_t row = 0, end = 0;  // those that are left
    };

    const Matrix& matrix_;
    const Block& block_;
    const Product* product_;
    const GroupedMemory& memory_;
    const int64_t count_, num_quads_, steps_, range_steps_, row_group_bytes_;
    const bool keeps_all_;
    DecodedPart* decoded_ = nullptr;
    Rest rest_;
    int turn_ = 0, part_turn_ = 0;
    alignas(64) int32_t quads_[2][QUAD_ROWS * 2 * PANEL];
};

// Computes the sums of a block in the thread's memory: floats, without the scales of rows.
inline float* sum_grouped(const Matrix& matrix, const Block& block) {
    const GroupedMemory memory(block, block.panels.size());
    GroupedTileBlock<NoRows>(matrix, block, nullptr, memory, ceil_div(matrix.k, STEP_K)).run();
    return memory.sums;
}

// Whether each two panels of a gated pair have groups of one size: only such are finished by quads.
inline bool has_like_pairs(const Matrix& matrix, const Block& block) {
    for (int64_t panel = block.panels.begin; panel < block.panels.end; panel += 2) {
        if (matrix.part_of(panel).chunk != matrix.part_of(panel + 1).chunk) return false;
    }
    return true;
}

// Computes a block of a product, range by range of k, and writes its results.
inline void multiply_grouped_on_tiles(const Product& product, const Block& block,
                                      int64_t range_steps) {
    const Matrix& matrix = product.matrix;
    if (product.epilogue == Epilogue::gate_mul && !has_like_pairs(matrix, block)) {
        return finish_block(product, block, sum_grouped(matrix, block));
    }
    const bool keeps_all = range_steps < ceil_div(matrix.k, STEP_K);
    const GroupedMemory memory(block, keeps_all ? block.panels.size() : 2);
    with_row_epilogue(product, [&](auto kind) {
        GroupedTileBlock<BlockRows<kind>>(matrix, block, &product, memory, range_steps).run();
    });
}

}  // namespace TACO_ISA

#endif
