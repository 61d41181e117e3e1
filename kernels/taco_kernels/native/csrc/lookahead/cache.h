// The lookahead cache: drafts tokens from n-grams of this and other sequences.
//
// Turbo mode builds trees from a table of all sequences; raw mode copies from the same sequence;
// hybrid mode tries turbo first. `docs/lookahead.md` describes them.
#pragma once

#include <cmath>
#include <vector>

#include "lookahead/learner.h"
#include "lookahead/raw_drafter.h"
#include "lookahead/turbo_drafter.h"
#include "runtime/thread_pool.h"

class LookaheadCache {
public:
    explicit LookaheadCache(const LookaheadOptions& options)
        : options_(options),
          priors_(options.priors, options.priors + NUM_CLASSES),
          eos_ids_(options.eos_ids, options.eos_ids + options.num_eos),
          vocabulary_{options.vocab_size, options.num_eos, eos_ids_.data()},
          hash_{{options.secret[0], options.secret[1]},
                std::max(options.raw_max, options.max_match)},
          table_(options),
          memory_(options.local_bytes),
          slots_(options.num_slots) {
        options_.priors = priors_.data();
        if (uses_raw()) {
            for (int32_t m = options.raw_max; m >= options.raw_min; --m) orders_.add(m);
        }
        if (uses_turbo()) orders_.add(options.min_match);
    }
    ~LookaheadCache() {
        for (LookaheadSlot& slot : slots_) slot.local.free(orders_, memory_);
    }
    LookaheadCache(const LookaheadCache&) = delete;
    LookaheadCache& operator=(const LookaheadCache&) = delete;

    int64_t local_bytes() const { return memory_.used(); }

    void learn(const LookaheadSequences& sequences) {
        Learner learner(table_, options_);
        const int32_t* tokens = sequences.token_ids;
        for (int64_t i = 0; i < sequences.count; ++i) {
            Context context;
            context.start(sequences.namespaces[i]);
            const int32_t* const end = tokens + sequences.num_tokens[i];
            for (; tokens != end; ++tokens) {
                learner.add(context, *tokens);
                context.push(*tokens, hash_);
            }
        }
    }

    void join(const LookaheadSequences& sequences) {
        Learner learner(table_, options_);
        const int32_t* tokens = sequences.token_ids;
        for (int64_t i = 0; i < sequences.count; ++i) {
            LookaheadSlot& slot = slots_[sequences.slots[i]];
            leave(slot);
            slot.context.start(sequences.namespaces[i]);
            slot.hits = options_.copy_length;
            const int32_t num_prompt = sequences.num_prompt[i], count = sequences.num_tokens[i];
            // A sequence that joins with output was learned before it was preempted.
            const bool is_new = count == num_prompt && !sequences.skips_prompt;
            for (int32_t k = 0; k < count; ++k) {
                const bool is_output = k >= num_prompt;
                if (is_new) learn_next(learner, slot, tokens[k]);
                advance(slot, tokens[k], is_output || !sequences.skips_prompt);
                if (is_output && vocabulary_.is_eos(tokens[k])) reset_context(slot);
            }
            tokens += count;
        }
    }

    void leave(const int32_t* slots, int64_t count) {
        for (int64_t i = 0; i < count; ++i) leave(slots_[slots[i]]);
    }
    void clear() {
        for (LookaheadSlot& slot : slots_) leave(slot);
    }

    void append(const LookaheadTokens& appended) {
        Learner learner(table_, options_);
        const int32_t* tokens = appended.token_ids;
        for (int64_t i = 0; i < appended.count; ++i) {
            LookaheadSlot& slot = slots_[appended.slots[i]];
            const int32_t count = appended.num_tokens[i];
            if (slot.num_pending && count) slot.record_accepted(tokens, count);
            for (int32_t k = 0; k < count; ++k) {
                learn_next(learner, slot, tokens[k]);
                advance(slot, tokens[k], true);
                if (vocabulary_.is_eos(tokens[k])) reset_context(slot);
            }
            tokens += count;
        }
    }

    // Writes the trees and returns the total number of their nodes.
    int64_t draft(Pool& pool, const LookaheadTrees& trees) {
        if (trees.count < MIN_ROWS_TO_SHARE || pool.num_threads() == 1) {
            for (int64_t row = 0; row < trees.count; row += GROUP) {
                draft_rows(trees, row, std::min(row + GROUP, trees.count));
            }
        } else {
            pool.run([&](Thread& thread) {
                thread.share(trees.count, GROUP,
                             [&](int64_t begin, int64_t end) { draft_rows(trees, begin, end); });
            });
        }
        if (options_.target_parallelism) limit_nodes(trees);
        return compact(trees);
    }

private:
    // Number of rows from which waking threads pays.
    static constexpr int64_t MIN_ROWS_TO_SHARE = 128;
    // Trees that are grown alternately: while one waits for memory the others compute.
    static constexpr int64_t GROUP = 8;

    bool uses_raw() const { return options_.mode != LookaheadMode::turbo; }
    bool uses_turbo() const { return options_.mode != LookaheadMode::raw; }

    void leave(LookaheadSlot& slot) {
        slot.local.free(orders_, memory_);
        slot.context.count = 0;
        slot.length = slot.num_pending = 0;
    }

    void learn_next(Learner& learner, const LookaheadSlot& slot, int32_t token) const {
        if (options_.table && slot.length < options_.max_len) learner.add(slot.context, token);
    }
    void advance(LookaheadSlot& slot, int32_t token, bool is_indexed) {
        if (++slot.length > options_.max_len) return;
        slot.context.push(token, hash_);
        if (is_indexed) slot.local.append(token, slot.context, hash_, orders_, memory_);
    }
    // Text after an end-of-sequence token has nothing to do with the text before it.
    void reset_context(LookaheadSlot& slot) {
        slot.context.start(slot.context.hashes[0]);
        slot.local.clear(orders_);
    }

    // Drafts for at most GROUP rows.
    void draft_rows(const LookaheadTrees& trees, int64_t begin, int64_t end) const {
        TreeGrowth growths[GROUP];
        TreeGrowth* growing[GROUP];
        int64_t num_growing = 0;
        for (int64_t row = begin; row < end; ++row) {
            TreeGrowth& growth = growths[row - begin];
            growth.tree.count = 0;
            if (!uses_turbo() || !max_nodes(trees, row)) continue;
            const LookaheadSlot& slot = slots_[trees.slots[row]];
            turbo_.start(slot, max_nodes(trees, row), max_depth(slot), growth);
            growing[num_growing++] = &growth;
        }
        while (num_growing) {
            num_growing = std::remove_if(growing, growing + num_growing,
                                         [&](TreeGrowth* g) { return !turbo_.step(*g); }) -
                          growing;
        }
        for (int64_t row = begin; row < end; ++row) {
            DraftTree& tree = growths[row - begin].tree;
            const LookaheadSlot& slot = slots_[trees.slots[row]];
            if (uses_raw() && !tree.count) {
                raw_.draft(slot, max_nodes(trees, row), max_depth(slot), tree);
            }
            const int64_t first = row * MAX_TREE;
            trees.num_nodes[row] = tree.count;
            tree.write(trees.token_ids + first, trees.parents + first, trees.classes + first);
        }
    }
    int32_t max_depth(const LookaheadSlot& slot) const {
        return std::max(std::min(options_.copy_length, options_.max_len - slot.length), 0);
    }
    int32_t max_nodes(const LookaheadTrees& trees, int64_t row) const {
        const int32_t most = std::min(trees.max_nodes[row], MAX_TREE);
        return max_depth(slots_[trees.slots[row]]) ? std::max(most, 0) : 0;
    }

    // Divides the step's room for drafts among the rows by their recent number of accepted drafts.
    void limit_nodes(const LookaheadTrees& trees) {
        int64_t num_nodes = 0;
        double sum = 0;
        for (int64_t row = 0; row < trees.count; ++row) {
            num_nodes += trees.num_nodes[row];
            sum += 1 + slots_[trees.slots[row]].hits;
        }
        const int64_t room = std::max<int64_t>(options_.target_parallelism - trees.count, 0);
        for (int64_t row = 0; row < trees.count; ++row) {
            LookaheadSlot& slot = slots_[trees.slots[row]];
            if (num_nodes > room) {
                const auto share = int32_t(std::floor(double(room) * (1 + slot.hits) / sum));
                trees.num_nodes[row] = std::min(trees.num_nodes[row], share);
            }
            remember_draft(trees, row, slot);
        }
    }

    void remember_draft(const LookaheadTrees& trees, int64_t row, LookaheadSlot& slot) const {
        const int32_t* const parents = trees.parents + row * MAX_TREE;
        int32_t& count = slot.num_pending;
        for (count = 0; count < trees.num_nodes[row] && parents[count] == count - 1; ++count) {
            slot.pending[count] = trees.token_ids[row * MAX_TREE + count];
        }
    }

    int64_t compact(const LookaheadTrees& trees) const {
        int64_t used = 0;
        for (int64_t row = 0; row < trees.count; ++row) {
            for (int32_t* column : {trees.token_ids, trees.parents, trees.classes}) {
                std::copy_n(column + row * MAX_TREE, trees.num_nodes[row], column + used);
            }
            used += trees.num_nodes[row];
        }
        return used;
    }

    LookaheadOptions options_;
    const std::vector<float> priors_;
    const std::vector<int32_t> eos_ids_;
    const Vocabulary vocabulary_;
    const ContextHash hash_;
    Orders orders_;
    LookaheadTable table_;
    LocalMemory memory_;
    std::vector<LookaheadSlot> slots_;
    const TurboDrafter turbo_{options_, hash_, orders_, vocabulary_,
                              options_.table ? &table_ : nullptr};
    const RawDrafter raw_{options_, orders_, vocabulary_};
};
