// Bans the tokens that a row's mask does not allow. Reference: taco_worker.sampling.token_masks.
#pragma once

#include "isa/partial_vectors.h"
#include "runtime/parallel.h"
#include "sampling/row_maxima.h"
#include "sampling/token_masks.h"

namespace TACO_ISA {

inline void mask_panel(float* logits, uint32_t bits, int64_t count) {
    if (bits == 0xffff) return;
    store_lanes(logits, select_bits(bits, load_lanes(logits, count), set1(-INFINITE)), count);
}

// Threads share the rows by segments.
inline void mask_logits(Thread& thread, const LogitRows& logits, const TokenMasks& masks) {
    constexpr int64_t segment_panels = SEGMENT_GROUPS * GROUP_TOKENS / PANEL;
    const int64_t segments = logits.num_segments();
    thread.share(logits.count * segments, 1, [&](int64_t index, int64_t) {
        const int64_t row = index / segments, first = index % segments * segment_panels;
        const uint32_t* mask = masks.mask(row);
        if (!mask) return;
        const int64_t last = std::min(first + segment_panels, ceil_div(logits.vocab_size, PANEL));
        for (int64_t panel = first; panel < last; ++panel) {
            const int64_t begin = panel * PANEL;
            mask_panel(logits.row(row) + begin, panel_bits(mask, panel),
                       std::min(PANEL, logits.vocab_size - begin));
        }
    });
}

}  // namespace TACO_ISA
