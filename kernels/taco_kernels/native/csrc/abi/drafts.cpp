// Entry points for choosing among drafts.

#include "abi/native_abi.h"
#include "drafts/draft_choice.h"

bool taco_are_draft_trees(const DraftTrees* trees, int64_t size, const int32_t* max_nodes,
                          int32_t vocab_size, int32_t num_classes) {
    return are_draft_trees(*trees, size, max_nodes, vocab_size, num_classes);
}

int64_t taco_accept_drafts(const DraftTrees* trees, const int64_t* chosen, int32_t* kept,
                           int32_t* num_kept) {
    return accept_drafts(*trees, chosen, kept, num_kept);
}

DraftChoice* taco_draft_choice_create(const float* priors, int32_t num_classes, int32_t num_slots) {
    return new DraftChoice(priors, num_classes, num_slots);
}

void taco_draft_choice_destroy(DraftChoice* choice) { delete choice; }

void taco_draft_choice_start(DraftChoice* choice, const int32_t* slots, int64_t count) {
    choice->acceptance.start(slots, count);
}

int64_t taco_draft_choice_choose(DraftChoice* choice, const DraftTrees* trees,
                                 const DraftLimits* limits, ChosenDrafts* chosen) {
    return choice->choose(*trees, *limits, chosen);
}

void taco_draft_choice_learn(DraftChoice* choice, const int32_t* slots, const int32_t* num_tokens,
                             const int32_t* token_ids, int64_t count) {
    choice->learn(slots, num_tokens, token_ids, count);
}

void taco_draft_choice_observe_step(DraftChoice* choice, int64_t num_tokens, double seconds) {
    choice->step_times.observe(num_tokens, seconds);
}

bool taco_draft_choice_is_ready(const DraftChoice* choice) { return choice->step_times.is_ready(); }

void taco_draft_choice_estimate(DraftChoice* choice, int64_t first, int64_t count,
                                double* seconds) {
    choice->step_times.estimate(first, count, seconds);
}

void taco_draft_choice_chances(const DraftChoice* choice, const DraftTrees* trees,
                               double* chances) {
    choice->acceptance.chances(*trees, chances);
}
