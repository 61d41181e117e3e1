// Products of codes with int8 activations on vectors: codes are decoded in registers, and the int32
// sums of a group stay there.
//
// Codes are the unsigned factor of the multiplying instructions. What a group's sums have too much
// is then subtracted: the sum of the group's activations times zero, and times what makes codes
// positive.
#pragma once

#include "matmul/codes/signed_rows.h"
#include "matmul/multiply_vectors.h"
#include "matmul/panel_dot.h"
#include "matmul/panel_steps.h"
#include "runtime/thread_memory.h"

#ifndef TACO_HAS_TILES

namespace TACO_ISA {

constexpr int MOST_PASS_PANELS = 8;

// A block of codes: PARTS quads of sixteen columns of W^T.
struct NibbleBlock {
    using Quads = NibbleQuads;
    static constexpr int PARTS = 2;
    static constexpr int32_t OFFSET = 0;
    static Quads load(const char* p, int part) { return load_nibble_quads(p, part); }
};
struct ByteBlock {
    using Quads = ByteQuads;
    static constexpr int PARTS = 1;
    static constexpr int32_t OFFSET = BYTE_CODE_OFFSET;
    static Quads load(const char* p, int) { return load_byte_quads(p); }
};

// One group of a few panels that are alike.
struct GroupPass {
    const CodePart* part;  // of the first panel
    const char* headers[MOST_PASS_PANELS];
    const char* next[MOST_PASS_PANELS];  // memory to prefetch meanwhile
    int64_t num_blocks;                  // of codes, of a panel
    bool is_first;                       // float sums start at zero
};

// Rows of int8 numbers, and what their sums over a group have too much: with zeros of groups, the
// sum of the group's numbers, which is multiplied with zero.
struct GroupRowsAt {
    const int8_t* numbers;  // SignedRows
    const int32_t* excess;
    int64_t excess_stride;
};

// sums[p][r] (from zero at the first group) += rows x panels over one group. Never inlined: as
// add_pass.
template <class Codes, int R, int P>
__attribute__((noinline)) void add_group(const GroupPass& pass, const GroupRowsAt& rows,
                                         float* sums, int64_t sums_stride) {
    const CodePart& part = *pass.part;
    I32 sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[r][p] = zero_i32();
    }
    const int64_t header_bytes = part.header_bytes(), num_blocks = pass.num_blocks;
    const int8_t* numbers = rows.numbers;
    for (int64_t block = 0; block < num_blocks; ++block) {
#pragma GCC unroll 2
        for (int half = 0; half < Codes::PARTS; ++half) {
            asm volatile("" ::: "memory");  // holds the loads of this half back until here
            typename Codes::Quads quads[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                quads[p] = Codes::load(pass.headers[p] + header_bytes + block * STEP_BYTES, half);
                if (half == 0) __builtin_prefetch(pass.next[p] + block * STEP_BYTES, 0, 2);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    sum[r][p] = dot_codes(sum[r][p], quads[p], numbers + r * 4);
                    keep(sum[r][p]);
                }
            }
            numbers += 4 * R;
        }
    }
    const int32_t* excess = rows.excess;
    if (part.offset == GroupOffset::zero) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const char* at = pass.headers[p] + PANEL * scale_bytes(part.scale_type);
            const I32 zeros = to_int(load_bf16(reinterpret_cast<const bf16*>(at)));
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                sum[r][p] = sub(sum[r][p], mul(zeros, set1_i32(excess[r * rows.excess_stride])));
            }
        }
    } else {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const I32 each = set1_i32(excess[r * rows.excess_stride]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[r][p] = sub(sum[r][p], each);
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
        const F32 scale = load_scales(part.scale_type, pass.headers[p]);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            float* out = sums + p * sums_stride + r * PANEL;
            store(out, fma(to_float(sum[r][p]), scale, pass.is_first ? zero() : load(out)));
        }
    }
}

// Calls the add_group for a number of panels known at run time, a power of two.
template <class Codes, int R, int P = pass_panels(R)>
void add_group(int64_t panels, const GroupPass& pass, const GroupRowsAt& rows, float* sums,
               int64_t sums_stride) {
    if constexpr (P > 1) {
        if (panels < P) return add_group<Codes, R, P / 2>(panels, pass, rows, sums, sums_stride);
    }
    add_group<Codes, R, P>(pass, rows, sums, sums_stride);
}

// The sums of a block, floats, without the scales of rows.
class GroupedBlock {
public:
    GroupedBlock(const Matrix& matrix, const Block& block, float* sums, void* rows_memory)
        : matrix_(matrix),
          block_(block),
          rows_(block, matrix.k, rows_memory),
          most_panels_(pass_panels(
              ceil_div(block.rows.size(), ceil_div(block.rows.size(), CODE_PASS_ROWS)))),
          sums_(sums) {}

    void run() {
        for (int64_t panel = block_.panels.begin, end; panel < block_.panels.end; panel = end) {
            end = panel + width_at(panel);
            if (part_of(panel).kind == CodeKind::nibble) {
                sum_panels<NibbleBlock>({panel, end});
            } else {
                sum_panels<ByteBlock>({panel, end});
            }
        }
    }

private:
    const CodePart& part_of(int64_t panel) const { return matrix_.part_of(panel); }

    // Panels from one on that a pass can take together: a power of two.
    int64_t width_at(int64_t panel) const {
        int64_t alike = 1;
        while (alike < most_panels_ && panel + alike < block_.panels.end &&
               are_alike(part_of(panel), part_of(panel + alike))) {
            ++alike;
        }
        int64_t width = most_panels_;
        while (width > alike) width /= 2;
        return width;
    }

    static bool are_alike(const CodePart& a, const CodePart& b) {
        return &a == &b || (a.kind == b.kind && a.scale_type == b.scale_type &&
                            a.offset == b.offset && a.zero == b.zero && a.chunk == b.chunk);
    }

    template <class Codes>
    void sum_panels(Range panels) {
        constexpr int64_t BLOCK_K = 4 * Codes::PARTS;
        const CodePart& part = part_of(panels.begin);
        rows_.sum_groups(part.chunk,
                         part.offset == GroupOffset::zero ? 1 : part.zero + Codes::OFFSET);
        const int64_t num_groups = ceil_div(part.k, part.chunk), sums_stride = block_.sums_stride();
        float* sums = sums_ + (panels.begin - block_.panels.begin) * sums_stride;
        GroupPass pass{};
        pass.part = &part;
        for (int64_t i = 0; i < panels.size(); ++i) {
            pass.next[i] = part_of(panels.begin + i).panel(panels.begin + i);
        }
        for (int64_t group = 0; group < num_groups; ++group) {
            const int64_t k = group * part.chunk;
            pass.num_blocks = ceil_div(std::min(part.chunk, part.k - k), BLOCK_K);
            pass.is_first = group == 0;
            for (int64_t i = 0; i < panels.size(); ++i) {
                pass.headers[i] = pass.next[i];
                pass.next[i] = group + 1 < num_groups ? pass.headers[i] + part.chunk_bytes()
                                                      : after(panels.end + i);
            }
            for_row_blocks<CODE_PASS_ROWS>(block_.rows.size(), [&](int64_t row, auto pass_rows) {
                const GroupRowsAt rows = {rows_.numbers(row, pass_rows, k),
                                          rows_.excess(row, group), rows_.excess_stride()};
                add_group<Codes, pass_rows>(panels.size(), pass, rows, sums + row * PANEL,
                                            sums_stride);
            });
        }
    }

    // What is read after the block's panels before one: that panel, if it is in the block.
    const char* after(int64_t panel) const {
        return panel < block_.panels.end ? part_of(panel).panel(panel) : block_.next;
    }

    const Matrix& matrix_;
    const Block& block_;
    SignedRows rows_;
    const int64_t most_panels_;
    float* const sums_;
};

// Computes the sums of a block in the thread's memory: floats, without the scales of rows.
inline const float* sum_grouped(const Matrix& matrix, const Block& block) {
    const int64_t sums_bytes = block.panels.size() * block.sums_stride() * int64_t(sizeof(float));
    void* memory = thread_memory(sums_bytes + SignedRows::bytes(block.rows.size(), matrix.k));
    auto* sums = static_cast<float*>(memory);
    GroupedBlock(matrix, block, sums, static_cast<char*>(memory) + sums_bytes).run();
    return sums;
}

}  // namespace TACO_ISA

#endif
