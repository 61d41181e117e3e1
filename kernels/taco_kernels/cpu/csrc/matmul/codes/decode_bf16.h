// Decodes columns of a panel of codes (code_args.h) to operands of bf16 products.
#pragma once

#include <algorithm>

#include "matmul/codes/decode_pairs.h"
#include "matmul/codes/multiply_codes.h"

namespace TACO_ISA {

// Bytes of codes that are fetched ahead of the decoder.
constexpr int64_t CODES_AHEAD = 4096;

// Of a decoded pair row.
constexpr int64_t DECODED_STEP_BYTES = PAIR_ITEMS * int64_t(sizeof(Bf16Operand));

// Decodes `columns` of a panel, which begin and end a block.
template <class Numbers, GroupOffset OFFSET>
void decode_columns(const CodePart& part, const char* panel, Range columns, Bf16Operand* out) {
    constexpr int64_t BLOCK = 2 * Numbers::PAIRS;
    const Numbers numbers(part);
    const GroupsOf<Numbers, OFFSET> groups(part);
    for (CodeRuns runs(part, columns); !runs.ended(); runs.next()) {
        const char* header = panel + runs.header();
        const char* codes = panel + runs.codes();
        const auto each_block = [&](auto scales_of) {
            const int64_t end = runs.column() + runs.columns();
            for (int64_t column = runs.column(); column < end; column += BLOCK, codes += 64) {
                __builtin_prefetch(codes + CODES_AHEAD, 0, 3);
                const auto block = Numbers::load_block(codes);
                each_constant<Numbers::PAIRS>([&](auto n) {
                    const auto scales = scales_of(column + 2 * n);
                    store_pairs(
                        out + n * PAIR_ITEMS,
                        decode_pair<OFFSET, n>(numbers, block, scales.first, scales.second));
                });
                out += Numbers::PAIRS * PAIR_ITEMS;
            }
        };
        if (part.groups) {
            each_block([&](int64_t column) {
                return PairScales(groups.load(header, part.groups[column]),
                                  groups.load(header, part.groups[column + 1]));
            });
        } else {
            const GroupScales own = groups.load(header, runs.group());
            const PairScales pair(own, own);
            each_block([&](int64_t) { return pair; });
        }
    }
}

template <class Numbers>
struct NumbersTag {
    using Type = Numbers;
};
// Calls body(NumbersTag, std::integral_constant of the offset) for the kind of codes of a part.
template <class Body>
inline void with_codes(const CodePart& part, Body body) {
    const auto with_offset = [&](auto tag) {
        switch (part.offset) {
            case GroupOffset::none:
                return body(tag, std::integral_constant<GroupOffset, GroupOffset::none>());
            case GroupOffset::zero:
                return body(tag, std::integral_constant<GroupOffset, GroupOffset::zero>());
            case GroupOffset::minimum:
                return body(tag, std::integral_constant<GroupOffset, GroupOffset::minimum>());
        }
    };
    switch (part.kind) {
        case CodeKind::nibble: return with_offset(NumbersTag<NibbleNumbers>());
        case CodeKind::int8: return with_offset(NumbersTag<Int8Numbers>());
        case CodeKind::e4m3: return with_offset(NumbersTag<E4m3Numbers>());
        case CodeKind::none: return;
        case CodeKind::int5:
        case CodeKind::int6: return;  // of int8 operands alone
    }
}

// The columns of steps of 2 columns that a part's codes have.
inline Range columns_of(const CodePart& part, Range steps) {
    const int64_t begin = 2 * steps.begin;
    return {begin,
            std::max(begin, std::min(2 * steps.end, round_up(part.k, part.block_columns())))};
}

}  // namespace TACO_ISA
