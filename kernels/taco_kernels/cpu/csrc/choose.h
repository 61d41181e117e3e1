// One token a row: the most likely one, or a random one after filters.
//
// A row's bits depend on that row alone. Weights are floats, exp((logit - max) / temperature). They
// are added up over sixteen lanes in each group of tokens, and the groups' sums in double and in
// the order of the vocabulary. Filters are thresholds on the weight, found without sorting; all
// tokens that tie with the last one kept are kept.
#pragma once

#include "parallel.h"
#include "threshold.h"

namespace TACO_ISA {

// What is done to one row, step by step. Threads may share a step by segments.
class RowChoice {
public:
    RowChoice(const Choice& choice, int64_t row, const RowScratch& scratch)
        : choice_(choice),
          logits_(choice.logits),
          row_(row),
          scratch_(scratch),
          state_(*scratch.state) {}

    void find_maxima(int64_t segment) const {
        TACO_ISA::find_maxima(logits_, row_, segment, scratch_.maxima);
    }

    // Settles a row that asks for the most likely token, or has no proper distribution.
    void begin() const {
        state_.max = row_maximum(logits_, scratch_.maxima);
        state_.is_settled = choice_.temperature[row_] == 0 || !std::isfinite(state_.max);
        if (state_.is_settled) {
            set_token(most_likely(logits_, row_, scratch_.maxima, state_.max));
            return;
        }
        weights().tops(scratch_.maxima, scratch_.tops);
        state_.floor = choice_.min_p[row_];
        if (top_k() > 0 && top_k() <= logits_.num_groups()) {
            // So many groups, hence so many tokens, have a weight of at least that.
            float* last = scratch_.members + top_k() - 1;
            float* end = std::copy_n(scratch_.tops, logits_.num_groups(), scratch_.members);
            std::nth_element(scratch_.members, last, end, std::greater<float>());
            state_.floor = std::max(state_.floor, *last);
        }
    }

    void weigh(int64_t segment) const {
        if (state_.is_settled) return;
        if (!has_filters()) return add_up(segment);
        Tally* buckets = scratch_.buckets + segment * WEIGHT_BUCKETS;
        std::fill_n(buckets, WEIGHT_BUCKETS, Tally{});
        const RowWeights weights = this->weights();
        const float tally_floor = this->tally_floor();
        for_kept_groups(segment, [&](int64_t group) {
            return tally_group(weights, group, state_.floor, tally_floor, buckets);
        });
    }

    // Raises the floor to what top_k, then top_p leave.
    void filter() const {
        if (state_.is_settled || !has_filters()) return;
        Tally* buckets = scratch_.buckets;
        for (int64_t segment = 1; segment < logits_.num_segments(); ++segment) {
            for (int64_t i = 0; i < WEIGHT_BUCKETS; ++i) {
                buckets[i].add(buckets[segment * WEIGHT_BUCKETS + i]);
            }
        }
        const RowWeights weights = this->weights();
        const Selection selection(weights, logits_, scratch_, buckets, tally_floor());
        float floor = state_.floor;
        double left = 0;
        if (top_k() > 0) {
            const Cut cut = selection.cut([&](const Tally& t) { return t.count >= top_k(); });
            floor = cut.weight;
            left = cut.kept.sum;
        } else {
            left = total();
        }
        if (top_p() < 1) {
            const double target = left * top_p();
            const Cut cut = selection.cut([=](const Tally& t) { return t.sum >= target; });
            floor = std::max(floor, cut.weight);
        }
        state_.floor = floor;
    }

    void weigh_again(int64_t segment) const {
        if (!state_.is_settled && has_filters()) add_up(segment);
    }

    // The first token whose cumulative weight exceeds the share of the sum that `uniforms` names.
    void draw() const {
        if (state_.is_settled) return;
        const double share = choice_.uniforms[row_] * total();
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
    int64_t top_k() const { return choice_.top_k[row_]; }
    double top_p() const { return choice_.top_p[row_]; }
    bool has_filters() const { return top_k() > 0 || top_p() < 1; }

    RowWeights weights() const {
        return RowWeights(logits_, row_, state_.max, choice_.temperature[row_]);
    }

    // Weights below it are dropped for sure. Those below (1 - top_p) / vocab_size of the sum cannot
    // make up the rest that top_p leaves out, and the sum is at least the greatest weight, 1.
    float tally_floor() const {
        if (top_k() > 0) return state_.floor;
        const double least = (1 - top_p()) / double(logits_.vocab_size);
        return std::max(state_.floor, float(least) / SLACK);
    }

    void add_up(int64_t segment) const {
        const RowWeights weights = this->weights();
        for_kept_groups(segment, [&](int64_t group) { return weights.sum(group, state_.floor); });
    }

    // Sets the groups' sums: sum(group), or 0 where all weights lie below the floor.
    template <class Sum>
    void for_kept_groups(int64_t segment, Sum sum) const {
        for_groups(logits_, segment, [&](int64_t group) {
            const bool is_dropped = scratch_.tops[group] * SLACK < state_.floor;
            scratch_.sums[group] = is_dropped ? 0 : sum(group);
        });
    }

    double total() const {
        double sum = 0;
        for (int64_t group = 0; group < logits_.num_groups(); ++group) sum += scratch_.sums[group];
        return sum;
    }

    // The group's own sum was rounded to float: the share may lie a hair beyond its last token.
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

    void set_token(int64_t token) const { choice_.token_ids[row_] = token; }

    const Choice& choice_;
    const LogitRows& logits_;
    int64_t row_;
    RowScratch scratch_;
    RowState& state_;
};

inline void choose_tokens(Thread& thread, const Choice& choice) {
    const int64_t rows = choice.logits.count, segments = choice.logits.num_segments();
    const bool is_few = rows < thread.count();
    const auto at = [&](int64_t row) {
        const int64_t slot = is_few ? row : thread.index();
        return RowChoice(choice, row, RowScratch::at(choice.scratch, choice.logits, slot));
    };
    if (!is_few || segments == 1) {
        thread.share(rows, 1, [&](int64_t row, int64_t) {
            const RowChoice whole = at(row);
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
    share_segments([](const RowChoice& row, int64_t s) { row.find_maxima(s); });
    share_rows([](const RowChoice& row) { row.begin(); });
    share_segments([](const RowChoice& row, int64_t s) { row.weigh(s); });
    share_rows([](const RowChoice& row) { row.filter(); });
    share_segments([](const RowChoice& row, int64_t s) { row.weigh_again(s); });
    share_rows([](const RowChoice& row) { row.draw(); });
}

}  // namespace TACO_ISA
