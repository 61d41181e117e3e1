// Products of a block with panels of codes with int8 activations, on vectors.
#pragma once

#include "matmul/codes/group_pass.h"
#include "runtime/thread_memory.h"

#ifndef TACO_HAS_TILES

namespace TACO_ISA {

// The sums of a block, floats, without the scales of rows.
class GroupedBlock {
public:
    GroupedBlock(const Matrix& matrix, const Block& block, float* sums, void* rows_memory)
        : matrix_(matrix),
          block_(block),
          rows_(block, matrix.k, rows_memory),
          pass_(code_pass(block)),
          most_panels_(code_pass_panels(pass_, block.rows.size())),
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
        const char* data[MAX_PASS_PANELS];
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
            for_code_passes(block_.rows.size(), [&](int64_t row, auto pass_rows) {
                const GroupRowsAt rows = {rows_.numbers(row, pass_rows, group * columns),
                                          rows_.starts(row, pass_rows, group),
                                          rows_.factors(row, pass_rows, group)};
                adder<Codes, pass_rows>(part.offset, decodes)(panels.size(), pass, rows,
                                                              sums + row * PANEL, sums_stride);
            });
        }
    }

    // The add_groups for R rows. `decodes`: a DecodedRun has the codes.
    template <class Codes, int R>
    auto adder(GroupOffset offset, bool decodes) const {
        switch (offset) {
            case GroupOffset::zero: return adder<Codes, GroupOffset::zero, R>(decodes);
            case GroupOffset::minimum: return adder<Codes, GroupOffset::minimum, R>(decodes);
            case GroupOffset::none: break;
        }
        return adder<Codes, GroupOffset::none, R>(decodes);
    }
    template <class Codes, GroupOffset OFFSET, int R>
    auto adder(bool decodes) const {
        if constexpr (R <= STREAM_PASS_ROWS) {
            if (pass_ == CodePass::STREAM) return add_groups<Codes, OFFSET, CodePass::STREAM, R>;
        }
        constexpr CodePass SHARING = HAS_SHORT_PASSES ? CodePass::SHORT : CodePass::LONG;
        if constexpr (SHARING == CodePass::LONG || R <= SHORT_PASS_ROWS) {
            if (decodes) return add_groups<DecodedBlock, OFFSET, SHARING, R>;
            if (pass_ == SHARING) return add_groups<Codes, OFFSET, SHARING, R>;
        }
        return add_groups<Codes, OFFSET, CodePass::LONG, R>;
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
    const CodePass pass_;
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
