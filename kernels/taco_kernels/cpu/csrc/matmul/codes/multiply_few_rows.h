// Products of a few rows with panels of codes, which are decoded in registers.
#pragma once

#include "matmul/codes/decode_bf16.h"
#include "matmul/panel_dot.h"

namespace TACO_ISA {

// Rows that share a decoded pair row in registers.
constexpr int FEW_CODE_ROWS = MAX_ACCUMULATORS > 16 ? 8 : 2;
// Panels at once: each sum waits for its previous value.
constexpr int CODE_PANELS = MAX_ACCUMULATORS > 16 ? 2 : 1;

// Some steps of some rows and of CODE_PANELS panels of a part, which may be the same one.
struct FewRows {
    const CodePart& part;
    Range steps;  // they begin a block
    const Bf16Operand* rows;
    int64_t row_stride;
    const char* panels[CODE_PANELS];
    float* sums[CODE_PANELS];           // of the rows; they start at zero at the first step
    Bf16Operand* decoded[CODE_PANELS];  // where the pair rows are stored, or null
    bool is_first;
};

// sums[p][r] += rows x panels. STORES: keeps what is decoded.
template <class Numbers, GroupOffset OFFSET, int R, bool STORES>
__attribute__((noinline)) void add_few_rows(const FewRows& few) {
    constexpr int P = CODE_PANELS;
    constexpr int64_t BLOCK = 2 * Numbers::PAIRS;
    const Numbers numbers(few.part);
    const GroupsOf<Numbers, OFFSET> groups(few.part);
    const Bf16Operand* rows = few.rows;
    const int64_t row_stride = few.row_stride;
    // All indices of arrays are constants: loops would keep the arrays in memory.
    F32 sum[R][P];
    Bf16Operand* out[P];
    each_constant<P>([&](auto p) {
        out[p] = few.decoded[p];
        each_constant<R>(
            [&](auto r) { sum[r][p] = few.is_first ? zero() : load(few.sums[p] + r * PANEL); });
    });
    const Range columns = columns_of(few.part, few.steps);
    for (CodeRuns runs(few.part, columns); !runs.ended(); runs.next()) {
        // The panels after these begin where the last of them ends.
        const bool ends = runs.codes() + CODES_AHEAD >= few.part.panel_bytes;
        const int64_t ahead = CODES_AHEAD + (ends ? (P - 1) * few.part.panel_bytes : 0);
        const char* codes[P];
        GroupPairScales scales[P];
        each_constant<P>([&](auto p) {
            codes[p] = few.panels[p] + runs.codes();
            scales[p] = GroupPairScales(groups.load(few.panels[p] + runs.header(), runs.group()));
        });
        for (const Bf16Operand* end = rows + runs.columns(); rows < end; rows += BLOCK) {
            typename Numbers::Block block[P];
            each_constant<P>([&](auto p) {
                __builtin_prefetch(codes[p] + ahead, 0, 3);
                block[p] = Numbers::load_block(codes[p]);
                codes[p] += 64;
            });
            each_constant<Numbers::PAIRS>([&](auto n) {
                each_constant<P>([&](auto p) {
                    const PairRow row = decode_pair<OFFSET, n>(numbers, block[p], scales[p].first,
                                                               scales[p].second());
                    if constexpr (STORES) store_pairs(out[p] + n * PAIR_ITEMS, row);
                    each_constant<R>([&](auto r) {
                        sum[r][p] = dot_pairs(sum[r][p], row, rows + r * row_stride + 2 * n);
                    });
                });
            });
            if constexpr (STORES) {
                each_constant<P>([&](auto p) { out[p] += Numbers::PAIRS * PAIR_ITEMS; });
            }
        }
    }
    alignas(64) constexpr bf16 ZEROS[PAIR_ITEMS] = {};
    for (int64_t left = few.steps.size() - columns.size() / 2; left > 0; --left, rows += 2) {
        const PairRow row = load_pairs(ZEROS);
        each_constant<P>([&](auto p) {
            if constexpr (STORES) {
                store_pairs(out[p], row);
                out[p] += PAIR_ITEMS;
            }
            each_constant<R>(
                [&](auto r) { sum[r][p] = dot_pairs(sum[r][p], row, rows + r * row_stride); });
        });
    }
    each_constant<P>([&](auto p) {
        each_constant<R>([&](auto r) { store(few.sums[p] + r * PANEL, sum[r][p]); });
    });
}

// The same for up to FEW_CODE_ROWS rows, or for as many, if pair rows are stored.
inline void add_few_rows(const FewRows& few, int64_t num_rows) {
    with_codes(few.part, [&](auto tag, auto offset) {
        using Numbers = typename decltype(tag)::Type;
        if (few.decoded[0]) return add_few_rows<Numbers, offset, FEW_CODE_ROWS, true>(few);
        with_constant<FEW_CODE_ROWS>(
            num_rows, [&](auto rows) { add_few_rows<Numbers, offset, rows, false>(few); });
    });
}

}  // namespace TACO_ISA
