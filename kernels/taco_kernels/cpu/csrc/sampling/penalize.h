// Repetition, presence and frequency penalties and n-gram bans on logits. Reference:
// taco_worker.sampling.torch_penalties.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/parallel.h"
#include "sampling/sampling_args.h"

namespace TACO_ISA {

// Counts the tokens of a sequence.
class TokenCounts {
public:
    // `counts`: [vocab_size], all 0 between uses.
    explicit TokenCounts(int32_t* counts) : counts_(counts) {}

    // Calls body(token, count) once for each distinct token.
    template <class Body>
    void each(const int32_t* begin, const int32_t* end, Body body) const {
        for (const int32_t* token = begin; token != end; ++token) ++counts_[*token];
        for (const int32_t* token = begin; token != end; ++token) {
            if (const int32_t count = std::exchange(counts_[*token], 0)) body(*token, count);
        }
    }

private:
    int32_t* const counts_;
};

// Bans every token that would complete an n-gram that the sequence already holds.
inline void ban_repeated_ngrams(float* logits, const int32_t* begin, const int32_t* end,
                                int64_t size) {
    const int64_t known = size - 1;  // tokens of the n-gram that the sequence ends with
    for (const int32_t* token = begin + known; token < end; ++token) {
        if (std::equal(end - known, end, token - known)) {
            logits[*token] = -std::numeric_limits<float>::infinity();
        }
    }
}

inline void penalize_row(const Penalties& penalties, int64_t index, const TokenCounts& counts) {
    float* logits = penalties.logits.row(penalties.rows[index]);
    const int32_t* tokens = penalties.tokens + penalties.sequences[index] * penalties.tokens_stride;
    const int32_t* output = tokens + penalties.starts[index];
    const int32_t* end = tokens + penalties.lengths[index];

    if (const float penalty = penalties.repetition[index]; penalty != 1) {
        counts.each(tokens, end, [=](int32_t token, int32_t) {
            float& logit = logits[token];
            logit = logit > 0 ? logit / penalty : logit * penalty;
        });
    }
    const float presence = penalties.presence[index], frequency = penalties.frequency[index];
    if (presence != 0 || frequency != 0) {
        counts.each(output, end, [=](int32_t token, int32_t count) {
            logits[token] -= frequency * float(count) + presence;
        });
    }
    if (const int64_t size = penalties.ngram_size[index]) {
        ban_repeated_ngrams(logits, tokens, end, size);
    }
}

inline void penalize(Thread& thread, const Penalties& penalties) {
    const TokenCounts counts(penalties.counts + thread.index() * penalties.logits.vocab_size);
    thread.share(penalties.count, 1,
                 [&](int64_t index, int64_t) { penalize_row(penalties, index, counts); });
}

}  // namespace TACO_ISA
