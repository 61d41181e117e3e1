// Decodes blocks of codes (code_args.h) to pair rows of bf16 in registers.
//
// A block is vectors of sixteen codes: 4 bits of sixteen words of 32 bits, or sixteen adjacent
// bytes. Each two of them are a pair row; isa/code_pairs.h says which codes are in which lanes.
#pragma once

#include <algorithm>

#include "matmul/codes/group_scales.h"
#include "runtime/range.h"

namespace TACO_ISA {

// The numbers of pair row N of a block, divided by FACTOR.
struct NibbleNumbers {
    using Block = I32;
    static constexpr int PAIRS = 4;  // pair rows of a block
    static constexpr float FACTOR = 1;
    Table16 table;

    explicit NibbleNumbers(const CodePart& part) : table(load_table(part.table)) {}
    static Block load_block(const char* p) { return load_i32(reinterpret_cast<const int32_t*>(p)); }
    template <int N>
    TwoVectors at(const Block& block) const {
        return {look_up<2 * N>(table, block), look_up<2 * N + 1>(table, block)};
    }
};

struct Int8Numbers {
    using Block = const char*;
    static constexpr int PAIRS = 2;
    static constexpr float FACTOR = 1;

    explicit Int8Numbers(const CodePart&) {}
    static Block load_block(const char* p) { return p; }
    template <int N>
    TwoVectors at(const Block& block) const {
        const auto* p = reinterpret_cast<const int8_t*>(block) + 2 * N * LANES;
        return {load_i8(p), load_i8(p + LANES)};
    }
};

struct E4m3Numbers {
    using Block = const char*;
    static constexpr int PAIRS = 2;
    static constexpr float FACTOR = E4M3_FACTOR;

    explicit E4m3Numbers(const CodePart&) {}
    static Block load_block(const char* p) { return p; }
    template <int N>
    TwoVectors at(const Block& block) const {
        return load_e4m3(block + 2 * N * LANES);
    }
};

template <GroupOffset OFFSET>
__attribute__((always_inline)) inline F32 scaled(F32 number, const GroupScales& group) {
    if constexpr (OFFSET == GroupOffset::zero) return mul(sub(number, group.offset), group.scale);
    const F32 value = mul(number, group.scale);
    if constexpr (OFFSET == GroupOffset::minimum) return sub(value, group.offset);
    return value;
}

// Scales and offsets of a pair row, lane by lane.
struct PairScales {
    GroupScales first, second;

    // Of the groups of its two columns.
    PairScales(const GroupScales& even, const GroupScales& odd) : first(even), second(odd) {
        if constexpr (!WIDENS_PAIRS) {
            first = {interleave_low(even.scale, odd.scale),
                     interleave_low(even.offset, odd.offset)};
            second = {interleave_high(even.scale, odd.scale),
                      interleave_high(even.offset, odd.offset)};
        }
    }
};

// The same where both columns are in one group.
struct GroupPairScales {
    GroupScales first, other;

    GroupPairScales() = default;
    explicit GroupPairScales(const GroupScales& group) : first(group) {
        if constexpr (!WIDENS_PAIRS) {
            first = {interleave_low(group.scale, group.scale),
                     interleave_low(group.offset, group.offset)};
            other = {interleave_high(group.scale, group.scale),
                     interleave_high(group.offset, group.offset)};
        }
    }
    const GroupScales& second() const { return WIDENS_PAIRS ? first : other; }
};

template <GroupOffset OFFSET, int N, class Numbers>
__attribute__((always_inline)) inline PairRow decode_pair(const Numbers& numbers,
                                                          const typename Numbers::Block& block,
                                                          const GroupScales& first,
                                                          const GroupScales& second) {
    const TwoVectors pair = numbers.template at<N>(block);
    return round_pairs(scaled<OFFSET>(pair.first, first), scaled<OFFSET>(pair.second, second));
}

// Calls body(std::integral_constant<int, N>) for N from 0 to COUNT - 1.
template <int COUNT, int N = 0, class Body>
__attribute__((always_inline)) inline void each_constant(Body body) {
    if constexpr (N < COUNT) {
        body(std::integral_constant<int, N>());
        each_constant<COUNT, N + 1>(body);
    }
}

// Walks over columns of a panel, group by group: whole blocks whose group is the same, or, where
// groups have any order, those of a chunk. Offsets are in bytes, of every panel of a part. All is
// inlined: a call would store the vectors of the caller.
class CodeRuns {
public:
    // `columns` begin and end a block; the last one may end past k.
    CodeRuns(const CodePart& part, Range columns)
        : column_(columns.begin),
          end_(std::min(columns.end, part.k)),
          num_groups_(part.groups ? 1 : part.num_groups),
          group_columns_(part.groups ? part.chunk : part.group_columns()),
          header_bytes_(part.header_bytes()),
          chunk_bytes_(part.chunk_bytes()) {
        const int64_t chunk = quotient(column_, part.chunk), first = column_ - chunk * part.chunk;
        header_ = chunk * chunk_bytes_;
        group_ = part.groups ? 0 : quotient(first, group_columns_);
        codes_ = header_ + header_bytes_ + part.code_bytes(first);
        code_bytes_ = part.code_bytes(group_columns_);
        skipped_ = part.code_bytes(first - group_ * group_columns_);
        group_end_ = column_ + (group_ + 1) * group_columns_ - first;
    }

    __attribute__((always_inline)) bool ended() const { return column_ >= end_; }
    int64_t column() const { return column_; }
    __attribute__((always_inline)) int64_t columns() const {
        return std::min(end_, group_end_) - column_;
    }
    int64_t header() const { return header_; }
    int64_t group() const { return group_; }  // of the chunk
    int64_t codes() const { return codes_; }

    __attribute__((always_inline)) void next() {
        column_ = group_end_;
        group_end_ += group_columns_;
        codes_ += code_bytes_ - skipped_;
        skipped_ = 0;
        if (++group_ < num_groups_) return;
        group_ = 0;
        header_ += chunk_bytes_;
        codes_ = header_ + header_bytes_;
    }

private:
    int64_t column_;
    const int64_t end_, num_groups_, group_columns_, header_bytes_, chunk_bytes_;
    int64_t header_, group_, codes_, code_bytes_;
    int64_t skipped_;  // bytes of the first group's codes before the first column
    int64_t group_end_;
};

}  // namespace TACO_ISA
