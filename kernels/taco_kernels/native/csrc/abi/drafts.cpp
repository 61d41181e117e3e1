// C functions of draft trees and draft selection.

#include "abi/native_abi.h"
#include "drafts/draft_selector.h"

bool taco_are_draft_trees(const DraftTrees* trees, int64_t size, const int32_t* max_nodes,
                          int32_t vocab_size, int32_t num_classes) {
    return are_draft_trees(*trees, size, max_nodes, vocab_size, num_classes);
}

int64_t taco_accept_drafts(const DraftTrees* trees, const int64_t* chosen, int32_t* kept,
                           int32_t* num_kept) {
    return accept_drafts(*trees, chosen, kept, num_kept);
}

DraftSelector* taco_draft_selector_create(const float* priors, int32_t num_classes,
                                          int32_t num_slots) {
    return new DraftSelector(priors, num_classes, num_slots);
}

void taco_draft_selector_destroy(DraftSelector* selector) { delete selector; }

void taco_draft_selector_start(DraftSelector* selector, const int32_t* slots, int64_t count) {
    selector->acceptance.start(slots, count);
}

int64_t taco_draft_selector_select(DraftSelector* selector, const DraftTrees* trees,
                                   const DraftLimits* limits, SelectedDrafts* selected) {
    return selector->select(*trees, *limits, selected);
}

void taco_draft_selector_learn(DraftSelector* selector, const int32_t* slots,
                               const int32_t* num_tokens, const int32_t* token_ids, int64_t count) {
    selector->learn(slots, num_tokens, token_ids, count);
}

void taco_draft_selector_observe_step(DraftSelector* selector, int64_t num_tokens, double seconds) {
    selector->step_times.observe(num_tokens, seconds);
}

bool taco_draft_selector_is_ready(const DraftSelector* selector) {
    return selector->step_times.is_ready();
}

void taco_draft_selector_estimate(DraftSelector* selector, int64_t first, int64_t count,
                                  double* seconds) {
    selector->step_times.estimate(first, count, seconds);
}

void taco_draft_selector_probabilities(const DraftSelector* selector, const DraftTrees* trees,
                                       double* probabilities) {
    selector->acceptance.probabilities(*trees, probabilities);
}
