// Selects the draft tokens of a step that are worth verifying.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "drafts/acceptance_rates.h"
#include "drafts/step_times.h"

struct DraftLimits {
    const bool* has_one_path;  // rows that cannot have branches
    int64_t max_branches;      // limit over all rows
    int64_t num_other_tokens;  // that the step computes besides drafts
    double draft_seconds;      // time that drafting took
};

// Columns as in DraftTrees, each with room for all nodes.
struct SelectedDrafts {
    int32_t* num_nodes;
    int32_t* token_ids;
    int32_t* parents;
    int32_t* classes;
    double gain;           // expected tokens per second over those of a step without drafts
    double plain_seconds;  // expected duration of a step without drafts
};

// Selects the likeliest nodes of all trees for as long as they raise tokens per second.
//
// The goodput of a step with m drafts is its expected number of tokens over its expected duration
// (as in Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using
// Goodput", 2024). Here the drafts are nodes of trees, and both estimates are learned as steps run.
// The batch has one list of nodes, so that a draft is verified where it helps most.
class DraftSelector {
public:
    AcceptanceRates acceptance;
    StepTimes step_times;

    DraftSelector(const float* priors, int32_t num_classes, int32_t num_slots)
        : acceptance(priors, num_classes, num_slots), row_of_slot_(num_slots, -1) {}

    // Writes the selected nodes and returns their number. All nodes are remembered until `learn` is
    // given the tokens that followed.
    int64_t select(const DraftTrees& trees, const DraftLimits& limits, SelectedDrafts* selected) {
        propose(trees);
        const int64_t total = tokens_.size();
        std::fill_n(selected->num_nodes, trees.num_rows, 0);
        selected->gain = 1;
        selected->plain_seconds = 0;
        if (!step_times.is_ready()) return 0;
        probabilities_.resize(total);
        acceptance.probabilities(trees, probabilities_.data());
        // A child is no likelier than its parent and comes after it, so that every prefix of this
        // order is a set of whole trees.
        order_.resize(total);
        std::iota(order_.begin(), order_.end(), 0);
        std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
            return probabilities_[a] > probabilities_[b];
        });
        const int64_t best = best_count(trees.num_rows, limits, selected);
        is_selected_.assign(total, false);
        for (int64_t i = 0; i < best; ++i) is_selected_[order_[i]] = true;
        return write(trees, limits, selected);
    }

    // Learns from the tokens that the rows received, num_tokens[i] for slots[i], in any order.
    void learn(const int32_t* slots, const int32_t* num_tokens, const int32_t* token_ids,
               int64_t count) {
        const DraftTrees trees = proposed();
        for (int64_t row = 0; row < trees.num_rows; ++row) row_of_slot_[slots_[row]] = row;
        outcomes_.assign(trees.num_rows, nullptr);
        num_next_tokens_.assign(trees.num_rows, 0);
        for (int64_t i = 0; i < count; ++i) {
            if (const int64_t row = row_of_slot_[slots[i]]; row >= 0) {
                outcomes_[row] = token_ids;
                num_next_tokens_[row] = num_tokens[i];
            }
            token_ids += num_tokens[i];
        }
        for (const int32_t slot : slots_) row_of_slot_[slot] = -1;
        acceptance.learn(trees, outcomes_.data(), num_next_tokens_.data());
        slots_.clear();
    }

private:
    // Minimum expected speed-up before drafts are verified: estimates are noisy, plain decoding is
    // safe.
    static constexpr double MIN_GAIN = 1.03;

    void propose(const DraftTrees& trees) {
        const int64_t total = trees.total();
        slots_.assign(trees.slots, trees.slots + trees.num_rows);
        num_nodes_.assign(trees.num_nodes, trees.num_nodes + trees.num_rows);
        tokens_.assign(trees.token_ids, trees.token_ids + total);
        parents_.assign(trees.parents, trees.parents + total);
        classes_.assign(trees.classes, trees.classes + total);
    }
    DraftTrees proposed() const {
        return {static_cast<int64_t>(slots_.size()),
                slots_.data(),
                num_nodes_.data(),
                tokens_.data(),
                parents_.data(),
                classes_.data()};
    }

    int64_t best_count(int64_t num_rows, const DraftLimits& limits, SelectedDrafts* selected) {
        const int64_t total = order_.size();
        seconds_.resize(total + 1);
        step_times.estimate(limits.num_other_tokens, total + 1, seconds_.data());
        double tokens = num_rows, best_tokens = num_rows;
        const double plain = tokens / seconds_[0];
        double best_goodput = plain;
        int64_t best = 0;
        for (int64_t count = 1; count <= total; ++count) {
            tokens += probabilities_[order_[count - 1]];
            if (const double goodput = tokens / seconds_[count]; goodput > best_goodput) {
                best = count, best_goodput = goodput, best_tokens = tokens;
            }
        }
        if (best_goodput < MIN_GAIN * plain) best = 0, best_tokens = num_rows;
        selected->gain = best_tokens / (seconds_[best] + limits.draft_seconds) / plain;
        selected->plain_seconds = seconds_[0];
        return best;
    }

    // Writes the selected nodes. A row that may have no branches, or exceeds the step's branch
    // limit, keeps its first path alone.
    int64_t write(const DraftTrees& trees, const DraftLimits& limits, SelectedDrafts* selected) {
        int64_t first = 0, written = 0, num_branches = 0;
        for (int64_t row = 0; row < trees.num_rows; ++row) {
            const int64_t end = first + trees.num_nodes[row];
            const int64_t row_start = written;
            indices_in_row_.resize(trees.num_nodes[row]);
            int64_t branches = 0, first_path = -1;
            for (int64_t i = first; i < end; ++i) {
                if (!is_selected_[i]) continue;
                const int32_t above = trees.parents[i] < 0 ? -1 : indices_in_row_[trees.parents[i]];
                const int32_t place = written - row_start;
                if (above != place - 1 && branches++ == 0) first_path = place;
                indices_in_row_[i - first] = place;
                selected->token_ids[written] = trees.token_ids[i];
                selected->parents[written] = above;
                selected->classes[written++] = trees.classes[i];
            }
            if (limits.has_one_path[row] || num_branches + branches > limits.max_branches) {
                if (branches) written = row_start + first_path;
            } else {
                num_branches += branches;
            }
            selected->num_nodes[row] = written - row_start;
            first = end;
        }
        return written;
    }

    // The trees of the last `select`.
    std::vector<int32_t> slots_, num_nodes_, tokens_, parents_, classes_;
    std::vector<int64_t> row_of_slot_;  // row of each slot, or -1
    std::vector<const int32_t*> outcomes_;
    std::vector<int32_t> num_next_tokens_, indices_in_row_;
    std::vector<int64_t> order_;
    std::vector<double> probabilities_, seconds_;
    std::vector<bool> is_selected_;
};
