// Products of codes with int8 activations on vectors: codes are decoded in registers, and the int32
// sums of a group stay there.
//
// Codes are the unsigned factor of the multiplying instructions. What a group's sums then have too
// much is the sum of the group's activations times zero, and times what makes codes positive: sums
// start with the negative of what is known of all codes.
#pragma once

#include "matmul/codes/signed_rows.h"

#ifndef TACO_HAS_TILES

namespace TACO_ISA {

constexpr int MAX_PASS_PANELS = 8;

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
constexpr int64_t RUN_COLUMNS = 128, MAX_RUN_GROUPS = RUN_COLUMNS / SUM_K;

// Walks over a panel of a part, some groups at a time: those of a chunk, or chunks of one group.
// Offsets are in bytes, of each panel that is alike.
class PanelRuns {
public:
    explicit PanelRuns(const CodePart& part)
        : chunk_groups_(part.num_groups),
          header_bytes_(part.header_bytes()),
          chunk_bytes_(part.chunk_bytes()),
          code_bytes_(part.code_bytes(part.group_columns())) {
        const int64_t most = chunk_groups_ == 1 ? MAX_RUN_GROUPS : chunk_groups_;
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
    const CodePart* part;                // of the first panel
    const char* codes[MAX_PASS_PANELS];  // of the first group
    const char* next[MAX_PASS_PANELS];   // memory to prefetch meanwhile
    int64_t num_groups;
    int64_t stride;       // bytes from one group's codes to the next's
    int64_t num_blocks;   // of codes, of a group of a panel
    int64_t last_blocks;  // of the last group
    bool is_first;        // float sums start at zero
    // Of each group and panel; offsets are zeros or minima.
    alignas(64) float scales[MAX_RUN_GROUPS][MAX_PASS_PANELS][PANEL];
    alignas(64) float offsets[MAX_RUN_GROUPS][MAX_PASS_PANELS][PANEL];
};

// The codes of a pass with a byte for each.
class DecodedRun {
public:
    template <class Codes>
    static constexpr bool TAKES = std::is_same_v<typename Codes::Quads, SmallQuads>;

    // Whether the rows share codes, and groups are short enough.
    template <class Codes>
    static bool pays(int64_t rows, int64_t panels, int64_t group_columns) {
        return TAKES<Codes> && shares_codes(rows) && panels <= MAX_PANELS &&
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
    static constexpr int64_t MAX_PANELS = 2;
    // Holds padded blocks too: groups have a multiple of a block's columns, or they are whole rows
    // of at most RUN_COLUMNS, which is such a multiple.
    alignas(64) char codes_[MAX_PANELS][RUN_COLUMNS * PANEL];
};

// Rows of int8 numbers, and what SignedRows has of each group of each of them.
struct GroupRowsAt {
    const int8_t* numbers;
    const int32_t *starts, *factors;
};

// sums[p][r] (from zero at the first group) += rows x panels over some groups. Never inlined: as
// add_pass.
template <class Codes, GroupOffset OFFSET, CodePass PASS, int R, int P>
__attribute__((noinline)) void add_panel_groups(const GroupPass& pass, const GroupRowsAt& rows,
                                                float* sums, int64_t sums_stride) {
    constexpr int CACHE = PASS == CodePass::STREAM ? NON_TEMPORAL : L2_CACHE;
    constexpr bool KEEPS_SUMS = PASS == CodePass::SHORT;
    const int8_t* numbers = rows.numbers;
    const int32_t *starts = rows.starts, *factors = rows.factors;
    const auto sum_at = [&](int r, int p) { return sums + p * sums_stride + r * PANEL; };
    F32 total[R][P];
    if constexpr (KEEPS_SUMS) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) total[r][p] = pass.is_first ? zero() : load(sum_at(r, p));
        }
    }
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
            if constexpr (OFFSET == GroupOffset::zero) {
                const I32 zeros = to_int(load(pass.offsets[group][p]));
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    sum[r][p] = add(sum[r][p], mul(zeros, set1_i32(factors[r])));
                }
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                if (!KEEPS_SUMS) total[r][p] = is_first ? zero() : load(sum_at(r, p));
                total[r][p] = fma(to_float(sum[r][p]), scale, total[r][p]);
                if constexpr (OFFSET == GroupOffset::minimum) {
                    float factor;
                    std::memcpy(&factor, factors + r, sizeof factor);
                    total[r][p] = fma(set1(factor), load(pass.offsets[group][p]), total[r][p]);
                }
                if (!KEEPS_SUMS) store(sum_at(r, p), total[r][p]);
            }
        }
    }
    if constexpr (KEEPS_SUMS) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) store(sum_at(r, p), total[r][p]);
        }
    }
}

// Adds a number of panels known at run time, a power of two.
template <class Codes, GroupOffset OFFSET, CodePass PASS, int R, int P = code_pass_panels(PASS, R)>
void add_groups(int64_t panels, const GroupPass& pass, const GroupRowsAt& rows, float* sums,
                int64_t sums_stride) {
    if constexpr (P > 1) {
        if (panels < P) {
            return add_groups<Codes, OFFSET, PASS, R, P / 2>(panels, pass, rows, sums, sums_stride);
        }
    }
    add_panel_groups<Codes, OFFSET, PASS, R, P>(pass, rows, sums, sums_stride);
}

}  // namespace TACO_ISA

#endif
