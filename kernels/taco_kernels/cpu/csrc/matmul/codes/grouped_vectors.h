// Products of codes with int8 activations on vectors: codes are decoded in registers, and the int32
// sums of a group stay there.
//
// Codes are the unsigned factor of the multiplying instructions. What a group's sums then have too
// much is the sum of the group's activations times zero, and times what makes codes positive: sums
// start with the negative of what is known of all codes.
#pragma once

#include "matmul/codes/signed_rows.h"
#include "matmul/multiply_vectors.h"
#include "matmul/panel_dot.h"
#include "matmul/panel_steps.h"
#include "runtime/thread_memory.h"

#ifndef TACO_HAS_TILES

namespace TACO_ISA {

constexpr int MOST_PASS_PANELS = 8;

// One or two rows wait for memory: see stream_panels. A sum waits for scales too, so two panels are
// faster than one.
constexpr int STREAM_CODE_ROWS = 2, STREAM_CODE_PANELS = 2;
inline bool streams_codes(const Block& block) {
    return block.rows.size() <= STREAM_CODE_ROWS && !block.is_cached;
}
inline int code_panels(const Block& block) {
    if (streams_codes(block)) return STREAM_CODE_PANELS;
    return pass_panels(block.rows.size(), CODE_PASS_ROWS);
}

// A block of codes: PARTS quads of sixteen columns of W^T.
struct NibbleBlock {
    using Quads = SmallQuads;
    static constexpr int PARTS = 2, BYTES = 64;
    static constexpr int32_t OFFSET = 0;
    static Quads load(const char* p, int part) { return load_nibble_quads(p, part); }
};
template <int HIGH>
struct JoinedBlock {
    using Quads = SmallQuads;
    static constexpr int PARTS = 8 / HIGH, BYTES = 64 + PARTS * 32;
    static constexpr int32_t OFFSET = 0;
    static Quads load(const char* p, int part) { return load_joined_quads<HIGH>(p, part); }
};
struct ByteBlock {
    using Quads = ByteQuads;
    static constexpr int PARTS = 1, BYTES = 64;
    static constexpr int32_t OFFSET = BYTE_CODE_OFFSET;
    static Quads load(const char* p, int) { return load_byte_quads(p); }
};

// Codes of which each has a byte, as `DecodedRun` has them.
struct DecodedBlock {
    using Quads = SmallQuads;
    static constexpr int PARTS = 1, BYTES = 64;
    static Quads load(const char* p, int) { return load_small_quads(p); }
};

// Columns of the groups that a pass takes together, unless one group has more: their codes stay in
// an L1 cache while all rows use them.
constexpr int64_t RUN_COLUMNS = 128, MOST_RUN_GROUPS = RUN_COLUMNS / SUM_K;

// Walks over a panel of a part, some groups at a time: those of a chunk, or chunks of one group.
// Offsets are in bytes, of each panel that is alike.
class PanelRuns {
public:
    explicit PanelRuns(const CodePart& part)
        : chunk_groups_(part.num_groups),
          header_bytes_(part.header_bytes()),
          chunk_bytes_(part.chunk_bytes()),
          code_bytes_(part.code_bytes(part.group_columns())) {
        const int64_t most = chunk_groups_ == 1 ? MOST_RUN_GROUPS : chunk_groups_;
        most_groups_ = std::clamp<int64_t>(RUN_COLUMNS / part.group_columns(), 1, most);
        while (most % most_groups_) --most_groups_;  // runs end with a chunk
    }

    // From the codes of a group to those of the next.
    int64_t stride() const { return chunk_groups_ == 1 ? chunk_bytes_ : code_bytes_; }
    int64_t most_groups() const { return most_groups_; }
    // Of the chunk of a group of this run, and the group's number in it.
    int64_t header(int64_t group) const {
        return chunk_ + (chunk_groups_ == 1 ? group * chunk_bytes_ : 0);
    }
    int64_t of_chunk(int64_t group) const { return chunk_groups_ == 1 ? 0 : first_ + group; }
    // Of the first group.
    int64_t codes() const { return chunk_ + header_bytes_ + first_ * code_bytes_; }

    void next() {
        if (chunk_groups_ == 1) {
            chunk_ += most_groups_ * chunk_bytes_;
        } else if ((first_ += most_groups_) == chunk_groups_) {
            first_ = 0;
            chunk_ += chunk_bytes_;
        }
    }

private:
    const int64_t chunk_groups_, header_bytes_, chunk_bytes_, code_bytes_;
    int64_t most_groups_, chunk_ = 0, first_ = 0;
};

// Adjacent groups of a few panels that are alike.
struct GroupPass {
    const CodePart* part;                 // of the first panel
    const char* codes[MOST_PASS_PANELS];  // of the first group
    const char* next[MOST_PASS_PANELS];   // memory to prefetch meanwhile
    int64_t num_groups;
    int64_t stride;       // bytes from one group's codes to the next's
    int64_t num_blocks;   // of codes, of a group of a panel
    int64_t last_blocks;  // of the last group
    bool is_first;        // float sums start at zero
    // Of each group and panel; offsets are zeros or minima.
    alignas(64) float scales[MOST_RUN_GROUPS][MOST_PASS_PANELS][PANEL];
    alignas(64) float offsets[MOST_RUN_GROUPS][MOST_PASS_PANELS][PANEL];
};

// The codes of a pass with a byte for each. Where many rows use them, to decode them once takes
// less time than to decode them in each pass.
class DecodedRun {
public:
    template <class Codes>
    static constexpr bool TAKES = std::is_same_v<typename Codes::Quads, SmallQuads>;

    // Whether `rows` use the codes of a run often, and its groups are short enough.
    template <class Codes>
    static bool pays(int64_t rows, int64_t panels, int64_t group_columns) {
        return TAKES<Codes> && rows > 2 * CODE_PASS_ROWS && panels <= MOST_PANELS &&
               group_columns <= RUN_COLUMNS;
    }

    // Decodes the codes of a pass, and makes it one over the result.
    template <class Codes>
    void decode(GroupPass& pass, int64_t panels) {
        const int64_t group_bytes = pass.num_blocks * Codes::PARTS * 64;
        for (int64_t p = 0; p < panels; ++p) {
            char* out = codes_[p];
            for (int64_t group = 0; group < pass.num_groups; ++group) {
                const bool is_last = group + 1 == pass.num_groups;
                const int64_t blocks = is_last ? pass.last_blocks : pass.num_blocks;
                const int64_t start = group * pass.stride;
                for (int64_t at = start; at < start + blocks * Codes::BYTES; at += Codes::BYTES) {
                    for (int line = 0; line < Codes::BYTES; line += 64) {
                        __builtin_prefetch(pass.next[p] + at + line, 0, 2);
                    }
#pragma GCC unroll 8
                    for (int part = 0; part < Codes::PARTS; ++part, out += 64) {
                        store_quads(out, Codes::load(pass.codes[p] + at, part));
                    }
                }
            }
            pass.codes[p] = codes_[p];
        }
        pass.stride = group_bytes;
        pass.num_blocks *= Codes::PARTS;
        pass.last_blocks *= Codes::PARTS;
    }

private:
    static constexpr int64_t MOST_PANELS = 2;
    // Holds padded blocks too: groups have a multiple of a block's columns, or they are whole rows
    // of at most RUN_COLUMNS, which is such a multiple.
    alignas(64) char codes_[MOST_PANELS][RUN_COLUMNS * PANEL];
};

// Rows of int8 numbers, and what SignedRows has of each group of each of them.
struct GroupRowsAt {
    const int8_t* numbers;
    const int32_t *starts, *factors;
};

// sums[p][r] (from zero at the first group) += rows x panels over some groups. Never inlined: as
// add_pass.
template <class Codes, int R, int P, bool STREAMS>
__attribute__((noinline)) void add_panel_groups(const GroupPass& pass, const GroupRowsAt& rows,
                                                float* sums, int64_t sums_stride) {
    constexpr int CACHE = STREAMS ? NON_TEMPORAL : L2_CACHE;
    const GroupOffset offset = pass.part->offset;
    const int8_t* numbers = rows.numbers;
    const int32_t *starts = rows.starts, *factors = rows.factors;
    for (int64_t group = 0; group < pass.num_groups; ++group, starts += R, factors += R) {
        I32 sum[R][P];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const I32 first = set1_i32(starts[r]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[r][p] = first;
        }
        const int64_t start = group * pass.stride;
        const int64_t blocks = group + 1 < pass.num_groups ? pass.num_blocks : pass.last_blocks;
        for (int64_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 8
            for (int part = 0; part < Codes::PARTS; ++part) {
                asm volatile("" ::: "memory");  // holds the loads of this part back until here
                typename Codes::Quads quads[P];
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) {
                    const int64_t at = start + block * Codes::BYTES;
                    quads[p] = Codes::load(pass.codes[p] + at, part);
                    if (part * 64 < Codes::BYTES && !std::is_same_v<Codes, DecodedBlock>) {
                        __builtin_prefetch(pass.next[p] + at + part * 64, 0, CACHE);
                    }
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
        const bool is_first = pass.is_first && group == 0;
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const F32 scale = load(pass.scales[group][p]);
            if (offset == GroupOffset::zero) {
                const I32 zeros = to_int(load(pass.offsets[group][p]));
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const I32 each = set1_i32(factors[r]);
                    sum[r][p] = add(sum[r][p], mul(zeros, each));
                }
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                float* out = sums + p * sums_stride + r * PANEL;
                F32 value = fma(to_float(sum[r][p]), scale, is_first ? zero() : load(out));
                if (offset == GroupOffset::minimum) {
                    float factor;
                    std::memcpy(&factor, factors + r, sizeof factor);
                    value = fma(set1(factor), load(pass.offsets[group][p]), value);
                }
                store(out, value);
            }
        }
    }
}

// Adds a number of panels known at run time, a power of two. STREAMS: as Ahead::STREAM.
template <class Codes, int R, bool STREAMS, int P = STREAMS ? STREAM_CODE_PANELS : pass_panels(R)>
void add_groups(int64_t panels, const GroupPass& pass, const GroupRowsAt& rows, float* sums,
                int64_t sums_stride) {
    if constexpr (P > 1) {
        if (panels < P) {
            return add_groups<Codes, R, STREAMS, P / 2>(panels, pass, rows, sums, sums_stride);
        }
    }
    add_panel_groups<Codes, R, P, STREAMS>(pass, rows, sums, sums_stride);
}

// The sums of a block, floats, without the scales of rows.
class GroupedBlock {
public:
    GroupedBlock(const Matrix& matrix, const Block& block, float* sums, void* rows_memory)
        : matrix_(matrix),
          block_(block),
          rows_(block, matrix.k, rows_memory),
          most_panels_(code_panels(block)),
          sums_(sums) {}

    void run() {
        for (int64_t panel = block_.panels.begin, end; panel < block_.panels.end; panel = end) {
            end = panel + width_at(panel);
            switch (part_of(panel).kind) {
                case CodeKind::nibble: sum_panels<NibbleBlock>({panel, end}); break;
                case CodeKind::int5: sum_panels<JoinedBlock<1>>({panel, end}); break;
                case CodeKind::int6: sum_panels<JoinedBlock<2>>({panel, end}); break;
                default: sum_panels<ByteBlock>({panel, end});
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
                            a.step_type == b.step_type && a.offset == b.offset &&
                            a.zero == b.zero && a.chunk == b.chunk && a.num_groups == b.num_groups);
    }

    template <class Codes>
    void sum_panels(Range panels) {
        const CodePart& part = part_of(panels.begin);
        const int64_t columns = part.group_columns();
        rows_.sum_groups(columns, -(part.zero + Codes::OFFSET), part.offset);
        PanelRuns runs(part);
        const int64_t num_groups = ceil_div(part.k, columns), sums_stride = block_.sums_stride();
        float* sums = sums_ + (panels.begin - block_.panels.begin) * sums_stride;
        const bool decodes = DecodedRun::pays<Codes>(block_.rows.size(), panels.size(), columns);
        DecodedRun decoded;
        GroupPass pass;
        pass.part = &part;
        const char* data[MOST_PASS_PANELS];
        for (int64_t i = 0; i < panels.size(); ++i) {
            data[i] = part_of(panels.begin + i).panel(panels.begin + i);
        }
        for (int64_t group = 0, end; group < num_groups; group = end) {
            end = std::min(group + runs.most_groups(), num_groups);
            pass.num_groups = end - group;
            pass.stride = runs.stride();
            pass.num_blocks = ceil_div(columns, part.block_columns());
            const int64_t last = (end - 1) * columns;
            pass.last_blocks = ceil_div(std::min(columns, part.k - last), part.block_columns());
            pass.is_first = group == 0;
            const PanelRuns run = runs;
            runs.next();
            for (int64_t i = 0; i < panels.size(); ++i) {
                pass.next[i] = end < num_groups ? data[i] + runs.codes() : after(panels.end + i);
                load_run(pass, run, data[i], i);
            }
            if constexpr (DecodedRun::TAKES<Codes>) {
                if (decodes) decoded.decode<Codes>(pass, panels.size());
            }
            for_row_blocks<CODE_PASS_ROWS>(block_.rows.size(), [&](int64_t row, auto pass_rows) {
                const GroupRowsAt rows = {rows_.numbers(row, pass_rows, group * columns),
                                          rows_.starts(row, pass_rows, group),
                                          rows_.factors(row, pass_rows, group)};
                adder<Codes, pass_rows>(decodes)(panels.size(), pass, rows, sums + row * PANEL,
                                                 sums_stride);
            });
        }
    }

    // The add_groups for R rows. `decodes`: a DecodedRun has the codes.
    template <class Codes, int R>
    auto adder(bool decodes) const {
        if constexpr (R <= STREAM_CODE_ROWS) {
            if (streams_codes(block_)) return add_groups<Codes, R, true>;
        }
        return decodes ? add_groups<DecodedBlock, R, false> : add_groups<Codes, R, false>;
    }

    // Loads the scales and offsets of a run of the panel at `index` of a pass.
    static void load_run(GroupPass& pass, const PanelRuns& run, const char* panel, int64_t index) {
        pass.codes[index] = panel + run.codes();
        switch (pass.part->offset) {
            case GroupOffset::none: return load_run<GroupOffset::none>(pass, run, panel, index);
            case GroupOffset::zero: return load_run<GroupOffset::zero>(pass, run, panel, index);
            case GroupOffset::minimum:
                return load_run<GroupOffset::minimum>(pass, run, panel, index);
        }
    }
    template <GroupOffset OFFSET>
    static void load_run(GroupPass& pass, const PanelRuns& run, const char* panel, int64_t index) {
        const GroupsOf<WholeNumbers, OFFSET> groups(*pass.part);
        const int64_t ahead = pass.next[index] - pass.codes[index];
        for (int64_t group = 0; group < pass.num_groups; ++group) {
            const char* header = panel + run.header(group);
            __builtin_prefetch(header + ahead, 0, 2);
            const GroupScales found = groups.load(header, run.of_chunk(group));
            store(pass.scales[group][index], found.scale);
            if (OFFSET != GroupOffset::none) store(pass.offsets[group][index], found.offset);
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
inline float* sum_grouped(const Matrix& matrix, const Block& block) {
    const int64_t sums_bytes = block.panels.size() * block.sums_stride() * int64_t(sizeof(float));
    void* memory = thread_memory(sums_bytes + SignedRows::bytes(block.rows.size(), matrix.k));
    auto* sums = static_cast<float*>(memory);
    GroupedBlock(matrix, block, sums, static_cast<char*>(memory) + sums_bytes).run();
    return sums;
}

}  // namespace TACO_ISA

#endif
