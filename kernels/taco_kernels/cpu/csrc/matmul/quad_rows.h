// The epilogue of a quad beside the tile products of the next one.
//
// It gives the bits of BlockRows (epilogue.h), of whole panels alone. Beside a step of tiles about
// 40 vector instructions cost no time, and scalar ones share the reorder buffer with the products.
// So whatever is alike for all rows of a block is found once.
#pragma once

#include "matmul/epilogue.h"

#ifdef TACO_HAS_TILES

namespace TACO_ISA {

// The sums of segments of k (matrix.h), which are added as a binary tree: segment `index` completes
// as many subtrees as its number ends with ones. `levels` keeps those that wait for their other
// half, [level][panel][row][PANEL].
struct SegmentTree {
    float* levels = nullptr;  // of the block's first row, and a panel
    int64_t panel_stride = 0, level_size = 0, index = 0;
    bool is_last = true;
};

// The products of a row with a panel of int8, as floats.
inline F32 scaled(const int32_t* sums, float row_scale, const float* scales) {
    return mul(to_float(load_i32(sums)), mul(set1(row_scale), load(scales)));
}

// `Item`: of sums, float or int32_t.
template <RowEpilogue KIND, class Item, bool HAS_SEGMENTS>
class QuadRows {
    static constexpr bool IS_INT8 = std::is_same_v<Item, int32_t>;
    static constexpr bool IS_GATED = is_gate_silu(KIND);

public:
    // Whether this can finish a quad.
    static bool fits(const Product& product, Range panels) {
        const Matrix& matrix = product.matrix;
        const int64_t columns = IS_GATED ? matrix.n / 2 : matrix.n;
        const int64_t end = IS_GATED ? panels.end / 2 : panels.end;
        return panels.size() == 2 && end * PANEL <= columns && (!IS_INT8 || matrix.scales) &&
               (IS_GATED || !product.out_is_operand);
    }

    QuadRows() = default;
    // Of two panels of a block, whose rows are counted from the block's first.
    QuadRows(const Product& product, Range rows, Range panels) {
        const Matrix& matrix = product.matrix;
        if (matrix.bias) bias_ = matrix.bias + panels.begin * PANEL;
        if constexpr (IS_INT8) {
            row_scales_ = product.rows.scales + rows.begin;
            scales_ = matrix.scales + panels.begin * PANEL;
            panels_ = static_cast<const int8_t*>(matrix.panel(panels.begin));
            panel_bytes_ = matrix.panel_bytes();
        }
        factor_ = product.factor;
        const int64_t column = (IS_GATED ? panels.begin / 2 : panels.begin) * PANEL;
        is_operand_ = product.out_is_operand;
        if (is_operand_) {
            out_ = static_cast<char*>(product.out) +
                   operand_offset(DType::bf16, rows.begin, product.out_stride, column);
            row_bytes_ = PIECE_BYTES;
            tile_bytes_ = operand_offset(DType::bf16, TILE_ROWS, product.out_stride, 0);
        } else {
            row_bytes_ = product.out_stride * int64_t(sizeof(float));
            tile_bytes_ = TILE_ROWS * row_bytes_;
            out_ = static_cast<char*>(product.out) + rows.begin * row_bytes_ +
                   column * int64_t(sizeof(float));
        }
    }

    // The rows of a quad: its sums are [2][row][PANEL], and its panels `stride` apart.
    void set_sums(Item* sums, int64_t first_row, int64_t stride) {
        sums_ = sums - first_row * PANEL;
        stride_ = stride;
    }
    void set_tree(const SegmentTree& tree) { tree_ = tree; }
    // Adds only these outliers of each row, which are in a part of k. If it is not the last part,
    // nothing else is done.
    void set_part(const OutlierRange* outliers, bool is_last) {
        outliers_ = outliers;
        is_last_part_ = is_last;
    }

    [[gnu::always_inline]] void operator()(int64_t row) const {
        Item* sums = sums_ + row * PANEL;
        F32 first, second;
        if constexpr (IS_INT8) {
            const RowScale& scale = row_scales_[row];
            if (outliers_) {
                if (!outliers_[row].is_empty()) add_part(scale, outliers_[row], sums);
                if (!is_last_part_) return;
            } else if (__builtin_expect(scale.num_outliers, 0)) {
                add_part(scale, scale.all_outliers(), sums);
            }
            first = scaled(sums, scale.scale, scales_);
            second = scaled(sums + stride_, scale.scale, scales_ + PANEL);
        } else {
            first = load(sums);
            second = load(sums + stride_);
        }
        if constexpr (HAS_SEGMENTS) {
            float* level = tree_.levels + row * PANEL;
            for (int64_t ones = tree_.index; ones & 1; ones >>= 1, level += tree_.level_size) {
                first = add(load(level), first);
                second = add(load(level + tree_.panel_stride), second);
            }
            if (!tree_.is_last) {
                store(level, first);
                store(level + tree_.panel_stride, second);
                return;
            }
        }
        if (bias_) {
            first = add(first, load(bias_));
            second = add(second, load(bias_ + PANEL));
        }
        write(out_of(row), first, second);
    }

    // Where a row will be written.
    char* out_of(int64_t row) const {
        return out_ + (row >> 4) * tile_bytes_ + (row & (TILE_ROWS - 1)) * row_bytes_;
    }

private:
    // Never inlined: rows without outliers do not pay for its registers.
    [[gnu::noinline]] void add_part(const RowScale& scale, const OutlierRange& range,
                                    Item* sums) const {
        add_outliers<2>(scale.outliers, range, panels_, panel_bytes_, sums, stride_);
    }

    void write(char* to, F32 first, F32 second) const {
        auto* out = reinterpret_cast<float*>(to);
        if constexpr (IS_GATED) {
            const F32 value = mul(silu_of<KIND>(first), second);
            if (is_operand_) {
                store_bf16_operand(reinterpret_cast<Bf16Operand*>(to), value);
            } else {
                store(out, value);
            }
        } else if constexpr (KIND == RowEpilogue::add) {
            store(out, fma(first, set1(factor_), load(out)));
            store(out + PANEL, fma(second, set1(factor_), load(out + PANEL)));
        } else {
            store(out, first);
            store(out + PANEL, second);
        }
    }

    Item* sums_ = nullptr;
    int64_t stride_ = 0;
    SegmentTree tree_;
    const float* bias_ = nullptr;
    const RowScale* row_scales_ = nullptr;
    const float* scales_ = nullptr;
    const int8_t* panels_ = nullptr;
    int64_t panel_bytes_ = 0;
    const OutlierRange* outliers_ = nullptr;  // of each row; null: all
    bool is_last_part_ = true;
    float factor_ = 1;
    bool is_operand_ = false;
    char* out_ = nullptr;
    int64_t row_bytes_ = 0, tile_bytes_ = 0;
};

// Adds the sums of segments of k to their tree, and finishes the last one's rows: as QuadRows with
// segments, for any rows and panels.
template <class Rows>
class SegmentRows {
public:
    // `block_row`: the quad's first row, counted from the block's first.
    SegmentRows(const Rows& rows, const Block& quad, float* sums, const SegmentTree& tree,
                int64_t block_row)
        : rows_(rows),
          first_row_(quad.rows.begin),
          block_row_(block_row),
          num_panels_(quad.panels.size()),
          sums_(sums),
          sums_stride_(quad.sums_stride()),
          tree_(tree) {}

    void operator()(int64_t row) const {
        const int64_t at = (row - first_row_) * PANEL;
        for (int64_t panel = 0; panel < num_panels_; ++panel) {
            float* own = sums_ + panel * sums_stride_ + at;
            float* level = tree_.levels + panel * tree_.panel_stride + block_row_ * PANEL + at;
            F32 sum = load(own);
            for (int64_t ones = tree_.index; ones % 2; ones /= 2, level += tree_.level_size) {
                sum = add(load(level), sum);
            }
            store(tree_.is_last ? own : level, sum);
        }
        if (tree_.is_last) rows_(row);
    }

private:
    Rows rows_;
    int64_t first_row_ = 0, block_row_ = 0, num_panels_ = 0;
    float* sums_ = nullptr;
    int64_t sums_stride_ = 0;
    SegmentTree tree_;
};

}  // namespace TACO_ISA

#endif
