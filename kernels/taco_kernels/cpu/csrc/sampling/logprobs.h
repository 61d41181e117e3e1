// Log probabilities of sampled tokens and of the most likely ones. Reference:
// taco_worker.sampling.logprobs.
#pragma once

#include "runtime/parallel.h"
#include "sampling/log_sum_exp.h"
#include "sampling/row_maxima.h"
#include "sampling/sampling_scratch.h"

namespace TACO_ISA {

// Number of a row's logits that are greater than `logit`.
inline int64_t count_greater(const float* logits, int64_t size, float logit) {
    int64_t count = 0, i = 0;
    for (; i + LANES <= size; i += LANES) {
        count += __builtin_popcount(less_bits(set1(logit), load(logits + i)));
    }
    for (; i < size; ++i) count += logit < logits[i];
    return count;
}

// Writes the ids of the `count` greatest logits, greatest first and lowest id first among equals,
// to the start of scratch.ids. NaN is greater than all.
inline void find_greatest(const LogitRows& rows, int64_t row, const RowScratch& scratch,
                          int64_t count) {
    const float* logits = rows.row(row);
    const auto key = [](float x) { return std::isnan(x) ? INFINITE : x; };
    float least = -INFINITE;
    if (count <= rows.num_groups()) {
        // At least `count` groups, and so at least `count` tokens, reach this value.
        float* last = scratch.members + count - 1;
        float* end = std::transform(scratch.maxima, scratch.maxima + rows.num_groups(),
                                    scratch.members, key);
        std::nth_element(scratch.members, last, end, std::greater<float>());
        least = *last;
    }
    int32_t* ids_end = scratch.ids;
    for (int64_t group = 0; group < rows.num_groups(); ++group) {
        if (key(scratch.maxima[group]) < least) continue;
        for (int64_t id = group_begin(group); id < group_end(rows, group); ++id) {
            if (key(logits[id]) >= least) *ids_end++ = int32_t(id);
        }
    }
    std::partial_sort(scratch.ids, scratch.ids + count, ids_end, [=](int32_t a, int32_t b) {
        return key(logits[a]) != key(logits[b]) ? key(logits[a]) > key(logits[b]) : a < b;
    });
}

// Gives the same bits as the sums that multiply_argmax makes of logits that it does not store.
inline void sum_partially(const LogitRows& rows, int64_t row, PartialSum* sums) {
    const float* numbers = rows.row(row);
    const F32 lowest = set1(-INFINITE);
    for (int64_t first = 0; first < rows.vocab_size; first += PARTIAL_SUM_TOKENS) {
        F32 logits[PARTIAL_SUM_PANELS];
        for (int64_t i = 0; i < PARTIAL_SUM_PANELS; ++i) {
            const int64_t begin = first + i * PANEL;
            const int64_t count = std::clamp<int64_t>(rows.vocab_size - begin, 0, LANES);
            logits[i] = count == LANES ? load(numbers + begin)
                        : count > 0    ? load_first(numbers + begin, count, -INFINITE)
                                       : lowest;
        }
        sums[first / PARTIAL_SUM_TOKENS] = partial_sum(logits);
    }
}

inline void gather_row_logprobs(const Logprobs& wanted, int64_t row, const RowScratch& scratch) {
    const LogitRows& rows = wanted.logits;
    const float* logits = rows.row(row);
    for (int64_t segment = 0; segment < rows.num_segments(); ++segment) {
        find_maxima(rows, row, segment, scratch.maxima);
    }
    const float max = row_maximum(rows, scratch.maxima);
    sum_partially(rows, row, scratch.partial_sums);
    const double log_sum =
        TACO_ISA::log_sum(scratch.partial_sums, num_partial_sums(rows.vocab_size), max);

    int64_t* ids = wanted.ids + row * wanted.width;
    float* values = wanted.values + row * wanted.width;
    const int64_t num_top = wanted.num_top[row];
    ids[0] = wanted.token_ids[row];
    wanted.ranks[row] = count_greater(logits, rows.vocab_size, logits[ids[0]]) + 1;
    if (num_top > 0) find_greatest(rows, row, scratch, num_top);
    std::copy_n(scratch.ids, num_top, ids + 1);
    for (int64_t i = 0; i <= num_top; ++i) {
        values[i] = float(double(logits[ids[i]]) - double(max) - log_sum);
    }
}

inline void gather_logprobs(Thread& thread, const Logprobs& wanted) {
    thread.share(wanted.logits.count, 1, [&](int64_t row, int64_t) {
        const int64_t slot = wanted.logits.count < thread.count() ? row : thread.index();
        gather_row_logprobs(wanted, row, RowScratch::at(wanted.scratch, wanted.logits, slot));
    });
}

}  // namespace TACO_ISA
