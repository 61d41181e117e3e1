// Samples one token per row: the most likely one, or a random one after temperature, min_p, top_k
// and top_p.
//
// A row's bits depend on that row alone. Weights are floats, exp((logit - max) / temperature). They
// are added over sixteen lanes in each group of tokens, and the groups' sums in double in
// vocabulary order. Filters are thresholds on the weight, found without sorting; all tokens that
// tie with the last one kept are kept.
#pragma once

#include "runtime/parallel.h"
#include "sampling/radix_select.h"

namespace TACO_ISA {

// Samples one row, step by step. Threads may share a step by segments.
class RowSampler {
public:
    RowSampler(const SamplingMetadata& metadata, int64_t row, const RowScratch& scratch)
        : metadata_(metadata),
          logits_(metadata.logits),
          row_(row),
          scratch_(scratch),
          state_(*scratch.state) {}

    void find_maxima(int64_t segment) const {
        TACO_ISA::find_maxima(logits_, row_, segment, scratch_.maxima);
    }

    // Finishes a row that asks for the most likely token, or that has no valid distribution.
    void begin() const {
        state_.max = row_maximum(logits_, scratch_.maxima);
        const bool is_finite = std::isfinite(state_.max);
        state_.is_done = metadata_.temperature[row_] == 0 || !is_finite;
        if (state_.is_done) {
            set_token(is_finite ? most_likely(logits_, row_, scratch_.maxima, state_.max)
                                : NO_TOKEN);
            return;
        }
        weights().tops(scratch_.maxima, scratch_.tops);
        state_.floor = metadata_.min_p[row_];
        if (top_k() > 0 && top_k() <= logits_.num_groups()) {
            // At least top_k groups, and so at least top_k tokens, have this weight or more.
            state_.floor = std::max(state_.floor, nth_greatest(top_k()));
        }
    }

    // With top_k the sum of the dropped weights is not needed.
    void weigh(int64_t segment) const {
        if (!state_.is_done && top_k() == 0) add_up(segment);
    }

    // Raises the floor to what top_k, then top_p keep.
    void filter() const {
        if (state_.is_done || !has_filters()) return;
        const RowWeights weights = this->weights();
        if (top_k() == 0) {
            state_.floor = std::max(state_.floor, nucleus_floor(weights));
            return;
        }
        const Selection selection(weights, logits_, scratch_, state_.floor);
        const Cut cut = selection.cut([&](const Tally& t) { return t.count >= top_k(); });
        state_.floor = cut.weight;
        if (top_p() < 1) {
            const float floor = nucleus_floor(selection, cut.kept.sum * top_p());
            state_.floor = std::max(state_.floor, floor);
        }
    }

    void weigh_again(int64_t segment) const {
        if (!state_.is_done && has_filters()) add_up(segment);
    }

    // Draws the first token whose cumulative weight exceeds the share of the sum given by
    // `uniforms`.
    void draw() const {
        if (state_.is_done) return;
        const double share = metadata_.uniforms[row_] * total();
        double before = 0, cumulative = 0;
        int64_t chosen = 0;
        for (int64_t group = 0; group < logits_.num_groups() && cumulative <= share; ++group) {
            if (scratch_.sums[group] == 0) continue;
            chosen = group;
            before = cumulative;
            cumulative += scratch_.sums[group];
        }
        set_token(draw_from(chosen, share - before));
    }

private:
    int64_t top_k() const { return metadata_.top_k[row_]; }
    double top_p() const { return metadata_.top_p[row_]; }
    bool has_filters() const { return top_k() > 0 || top_p() < 1; }

    RowWeights weights() const {
        return RowWeights(logits_, row_, state_.max, metadata_.temperature[row_]);
    }

    // The n-th largest of the groups' greatest weights.
    float nth_greatest(int64_t n) const {
        float* nth = scratch_.members + n - 1;
        float* end = std::copy_n(scratch_.tops, logits_.num_groups(), scratch_.members);
        std::nth_element(scratch_.members, nth, end, std::greater<float>());
        return *nth;
    }

    // The least weight of the tokens that together reach top_p of the row's sum.
    float nucleus_floor(const RowWeights& weights) const {
        const double sum = total(), target = sum * top_p();
        // Most often the groups with the most likely tokens are enough.
        for (const int64_t share : {8, 2}) {
            const float likely = nth_greatest(ceil_div(logits_.num_groups(), share));
            const Selection selection(weights, logits_, scratch_, std::max(state_.floor, likely));
            if (selection.sum() >= target) return nucleus_floor(selection, target);
            if (selection.sum() < target / 4) break;
        }
        // Weights below (1 - top_p) / vocab_size of the sum cannot make up the rest that top_p
        // leaves out. With a lower bound than that, vectors of a flat distribution are kept whole.
        const float sure = float((1 - top_p()) * sum / double(8 * logits_.vocab_size));
        const Selection selection(weights, logits_, scratch_, std::max(state_.floor, sure));
        return nucleus_floor(selection, target);
    }
    static float nucleus_floor(const Selection& selection, double target) {
        return selection.cut([=](const Tally& t) { return t.sum >= target; }).weight;
    }

    // Sums the weights of each group that are not dropped.
    void add_up(int64_t segment) const {
        const RowWeights weights = this->weights();
        for_groups(logits_, segment, [&](int64_t group) {
            const bool is_dropped = scratch_.tops[group] * SLACK < state_.floor;
            scratch_.sums[group] = is_dropped ? 0 : weights.sum(group, state_.floor);
        });
    }

    double total() const {
        double sum = 0;
        for (int64_t group = 0; group < logits_.num_groups(); ++group) sum += scratch_.sums[group];
        return sum;
    }

    // The group's own sum was rounded to float, so that the share may lie slightly beyond its last
    // token.
    int64_t draw_from(int64_t group, double share) const {
        double cumulative = 0;
        int64_t token = group_begin(group);
        weights().each(group, [&](int64_t first, F32 w) {
            float numbers[LANES];
            store(numbers, w);
            for (int lane = 0; lane < LANES && cumulative <= share; ++lane) {
                if (numbers[lane] == 0 || numbers[lane] < state_.floor) continue;
                token = first + lane;
                cumulative += numbers[lane];
            }
        });
        return token;
    }

    void set_token(int64_t token) const { metadata_.token_ids[row_] = token; }

    const SamplingMetadata& metadata_;
    const LogitRows& logits_;
    int64_t row_;
    RowScratch scratch_;
    RowState& state_;
};

inline void sample_tokens(Thread& thread, const SamplingMetadata& metadata) {
    const int64_t rows = metadata.logits.count, segments = metadata.logits.num_segments();
    const bool is_few = rows < thread.count();
    const auto at = [&](int64_t row) {
        const int64_t slot = is_few ? row : thread.index();
        return RowSampler(metadata, row, RowScratch::at(metadata.scratch, metadata.logits, slot));
    };
    if (!is_few || segments == 1) {
        thread.share(rows, 1, [&](int64_t row, int64_t) {
            const RowSampler whole = at(row);
            for (int64_t s = 0; s < segments; ++s) whole.find_maxima(s);
            whole.begin();
            for (int64_t s = 0; s < segments; ++s) whole.weigh(s);
            whole.filter();
            for (int64_t s = 0; s < segments; ++s) whole.weigh_again(s);
            whole.draw();
        });
        return;
    }
    const auto share_segments = [&](auto step) {
        thread.share(rows * segments, 1,
                     [&](int64_t i, int64_t) { step(at(i / segments), i % segments); });
    };
    const auto share_rows = [&](auto step) {
        thread.share(rows, 1, [&](int64_t row, int64_t) { step(at(row)); });
    };
    share_segments([](const RowSampler& row, int64_t s) { row.find_maxima(s); });
    share_rows([](const RowSampler& row) { row.begin(); });
    share_segments([](const RowSampler& row, int64_t s) { row.weigh(s); });
    share_rows([](const RowSampler& row) { row.filter(); });
    share_segments([](const RowSampler& row, int64_t s) { row.weigh_again(s); });
    share_rows([](const RowSampler& row) { row.draw(); });
}

}  // namespace TACO_ISA
