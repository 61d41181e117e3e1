// How often drafts are accepted: learned from every draft whose fate is known.
#pragma once

#include <algorithm>
#include <vector>

#include "drafts/draft_trees.h"

// The chance of each node of a tree, from its class and from how its sequence has gone so far.
//
// Drafts that were not verified teach as well: when a sequence's next tokens are known, so is
// whether they would have been accepted. A drafter that is switched off for being wrong is thus
// switched on again once it is right.
class DraftAcceptance {
public:
    DraftAcceptance(const float* priors, int32_t num_classes, int32_t num_slots)
        : classes_(num_classes), sequences_(num_slots, FRESH) {
        for (int32_t i = 0; i < num_classes; ++i) {
            classes_[i] = {PRIOR_WEIGHT, PRIOR_WEIGHT * static_cast<double>(priors[i])};
        }
    }

    // Other sequences stand in these slots now.
    void start(const int32_t* slots, int64_t count) {
        for (int64_t i = 0; i < count; ++i) sequences_[slots[i]] = FRESH;
    }

    // Of each node and all above it to be accepted.
    void chances(const DraftTrees& trees, double* chances) const {
        int64_t first = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            const double mood = sequences_[trees.slots[row]].share();
            const int64_t end = first + trees.num_nodes[row];
            for (int64_t i = first; i < end; ++i) {
                const double own = std::min(classes_[trees.classes[i]].share() * mood, MAX_CHANCE);
                chances[i] = trees.parents[i] < 0 ? own : own * chances[first + trees.parents[i]];
            }
            first = end;
        }
    }

    // What the next tokens of each row turned out to be; none of them are known where that is null.
    void learn(const DraftTrees& trees, const int32_t* const* tokens, const int32_t* num_tokens) {
        judge(trees, tokens, num_tokens);
        int64_t first = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            Count& sequence = sequences_[trees.slots[row]];
            const int64_t end = first + trees.num_nodes[row];
            for (int64_t i = first; i < end; ++i) {
                if (fates_[i] == UNKNOWN) continue;
                sequence.all += classes_[trees.classes[i]].share();
                sequence.right += fates_[i] == RIGHT;
            }
            sequence.fade(SEQUENCE_MAX_WEIGHT);
            first = end;
        }
        for (int64_t i = 0; i < first; ++i) {
            if (fates_[i] == UNKNOWN) continue;
            Count& kind = classes_[trees.classes[i]];
            kind.all += 1;
            kind.right += fates_[i] == RIGHT;
        }
        for (Count& kind : classes_) kind.fade(MAX_WEIGHT);
    }

private:
    struct Count {
        double all, right;  // of a sequence: expected to be right, and right
        double share() const { return right / all; }
        void fade(double limit) {
            const double factor = std::min(1.0, limit / all);
            all *= factor;
            right *= factor;
        }
    };
    enum Fate : uint8_t { UNKNOWN, WRONG, RIGHT };

    // Drafts that a prior weighs, and that what was seen at most weighs: older ones fade. The same
    // for one sequence, since what a text is like changes faster.
    static constexpr double PRIOR_WEIGHT = 4, MAX_WEIGHT = 400;
    static constexpr double SEQUENCE_PRIOR = 2, SEQUENCE_MAX_WEIGHT = 24;
    static constexpr double MAX_CHANCE = 0.98;
    static constexpr Count FRESH{SEQUENCE_PRIOR, SEQUENCE_PRIOR};

    // A node's fate is known where its parent was right and the token at its place has come.
    void judge(const DraftTrees& trees, const int32_t* const* tokens, const int32_t* num_tokens) {
        const int64_t total = trees.total();
        fates_.assign(total, UNKNOWN);
        depths_.resize(total);
        int64_t first = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            const int64_t end = first + trees.num_nodes[row];
            for (int64_t i = first; tokens[row] && i < end; ++i) {
                const int64_t above = first + trees.parents[i];
                const bool is_first = trees.parents[i] < 0;
                depths_[i] = is_first ? 1 : depths_[above] + 1;
                if ((is_first || fates_[above] == RIGHT) && depths_[i] <= num_tokens[row]) {
                    fates_[i] = trees.token_ids[i] == tokens[row][depths_[i] - 1] ? RIGHT : WRONG;
                }
            }
            first = end;
        }
    }

    std::vector<Count> classes_, sequences_;
    std::vector<Fate> fates_;
    std::vector<int32_t> depths_;
};
