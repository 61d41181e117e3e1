// Estimates the probability that a draft token is accepted, from earlier drafts.
#pragma once

#include <algorithm>
#include <vector>

#include "drafts/draft_trees.h"

// The acceptance probability of each tree node, from its class and its sequence's recent drafts.
//
// Drafts that were not verified count too: once the sequence's next tokens are known, it is known
// whether they would have been accepted. So a drafter that was switched off for bad drafts is
// switched on again once its drafts are right.
class AcceptanceRates {
public:
    AcceptanceRates(const float* priors, int32_t num_classes, int32_t num_slots)
        : classes_(num_classes), sequences_(num_slots, INITIAL) {
        for (int32_t i = 0; i < num_classes; ++i) {
            classes_[i] = {PRIOR_WEIGHT, PRIOR_WEIGHT * static_cast<double>(priors[i])};
        }
    }

    // Resets the statistics of slots that now hold other sequences.
    void start(const int32_t* slots, int64_t count) {
        for (int64_t i = 0; i < count; ++i) sequences_[slots[i]] = INITIAL;
    }

    // Writes for each node the probability that it and all its ancestors are accepted.
    void probabilities(const DraftTrees& trees, double* probabilities) const {
        int64_t first = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            const double sequence_rate = sequences_[trees.slots[row]].rate();
            const int64_t end = first + trees.num_nodes[row];
            for (int64_t i = first; i < end; ++i) {
                const double own =
                    std::min(classes_[trees.classes[i]].rate() * sequence_rate, MAX_PROBABILITY);
                probabilities[i] =
                    trees.parents[i] < 0 ? own : own * probabilities[first + trees.parents[i]];
            }
            first = end;
        }
    }

    // Updates the statistics with the tokens that followed. tokens[row] is null where none are
    // known.
    void learn(const DraftTrees& trees, const int32_t* const* tokens, const int32_t* num_tokens) {
        find_outcomes(trees, tokens, num_tokens);
        int64_t first = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            Count& sequence = sequences_[trees.slots[row]];
            const int64_t end = first + trees.num_nodes[row];
            for (int64_t i = first; i < end; ++i) {
                if (outcomes_[i] == UNKNOWN) continue;
                sequence.all += classes_[trees.classes[i]].rate();
                sequence.accepted += outcomes_[i] == ACCEPTED;
            }
            sequence.fade(SEQUENCE_MAX_WEIGHT);
            first = end;
        }
        for (int64_t i = 0; i < first; ++i) {
            if (outcomes_[i] == UNKNOWN) continue;
            Count& draft_class = classes_[trees.classes[i]];
            draft_class.all += 1;
            draft_class.accepted += outcomes_[i] == ACCEPTED;
        }
        for (Count& draft_class : classes_) draft_class.fade(MAX_WEIGHT);
    }

private:
    struct Count {
        double all, accepted;  // of a sequence: expected and observed acceptances
        double rate() const { return accepted / all; }
        void fade(double limit) {
            const double factor = std::min(1.0, limit / all);
            all *= factor;
            accepted *= factor;
        }
    };
    enum Outcome : uint8_t { UNKNOWN, REJECTED, ACCEPTED };

    // A prior counts as PRIOR_WEIGHT drafts. Observations count as at most MAX_WEIGHT drafts: older
    // ones fade. A sequence has smaller limits, since the kind of its text changes faster.
    static constexpr double PRIOR_WEIGHT = 4, MAX_WEIGHT = 400;
    static constexpr double SEQUENCE_PRIOR = 2, SEQUENCE_MAX_WEIGHT = 24;
    static constexpr double MAX_PROBABILITY = 0.98;
    static constexpr Count INITIAL{SEQUENCE_PRIOR, SEQUENCE_PRIOR};

    // A node's outcome is known where its parent was accepted and the token at its depth has
    // arrived.
    void find_outcomes(const DraftTrees& trees, const int32_t* const* tokens,
                       const int32_t* num_tokens) {
        const int64_t total = trees.total();
        outcomes_.assign(total, UNKNOWN);
        depths_.resize(total);
        int64_t first = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            const int64_t end = first + trees.num_nodes[row];
            for (int64_t i = first; tokens[row] && i < end; ++i) {
                const int64_t above = first + trees.parents[i];
                const bool is_first = trees.parents[i] < 0;
                depths_[i] = is_first ? 1 : depths_[above] + 1;
                if ((is_first || outcomes_[above] == ACCEPTED) && depths_[i] <= num_tokens[row]) {
                    outcomes_[i] =
                        trees.token_ids[i] == tokens[row][depths_[i] - 1] ? ACCEPTED : REJECTED;
                }
            }
            first = end;
        }
    }

    std::vector<Count> classes_, sequences_;
    std::vector<Outcome> outcomes_;
    std::vector<int32_t> depths_;
};
