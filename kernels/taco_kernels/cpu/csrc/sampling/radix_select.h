// The weight threshold of a top_k or top_p filter: radix selection over the bits of the weights,
// ten at a time.
#pragma once

#include "sampling/row_weights.h"

namespace TACO_ISA {

// A weight is at most 1, so that its bits fill three digits.
constexpr int DIGIT_BITS = 10;
constexpr int FIRST_SHIFT = 2 * DIGIT_BITS;
inline uint32_t digit(float weight, int shift) {
    return bits_of(weight) >> shift & (WEIGHT_BUCKETS - 1);
}

// Calls body(number) for the lanes whose bits are set.
template <class Body>
inline void for_hits(F32 v, uint32_t bits, Body body) {
    if (bits == 0) return;
    float numbers[LANES];
    store(numbers, v);
    if (bits == 0xffff) {
        for (float number : numbers) body(number);
        return;
    }
    for (; bits != 0; bits &= bits - 1) body(numbers[__builtin_ctz(bits)]);
}

struct Cut {
    float weight;  // the least weight kept; ties are kept too
    Tally kept;
};

// The weights of a row that are positive and at least `floor`, sorted into buckets by their first
// digit.
class Selection {
public:
    Selection(const RowWeights& weights, const LogitRows& logits, const RowScratch& scratch,
              float floor)
        : weights_(weights), logits_(logits), scratch_(scratch), floor_(floor) {
        std::fill_n(scratch.buckets, WEIGHT_BUCKETS, Tally{});
        for_weights(floor, [&](F32 w, uint32_t at_least) {
            for_hits(w, at_least, [&](float weight) {
                scratch.buckets[digit(weight, FIRST_SHIFT)].add(weight);
            });
        });
    }

    double sum() const {
        double sum = 0;
        for (int64_t i = 0; i < WEIGHT_BUCKETS; ++i) sum += scratch_.buckets[i].sum;
        return sum;
    }

    // Keeps the greatest weights until reached(their tally), or all of them. There must be at least
    // one.
    template <class Reached>
    Cut cut(Reached reached) const {
        Tally above{};
        const uint32_t first = find_bucket(scratch_.buckets, above, reached);
        int64_t count = collect(first);
        for (int shift = FIRST_SHIFT - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
            std::fill_n(scratch_.finer, WEIGHT_BUCKETS, Tally{});
            for (int64_t i = 0; i < count; ++i) {
                const float weight = scratch_.members[i];
                scratch_.finer[digit(weight, shift)].add(weight);
            }
            const uint32_t chosen = find_bucket(scratch_.finer, above, reached);
            const auto is_other = [=](float weight) { return digit(weight, shift) != chosen; };
            count = std::remove_if(scratch_.members, scratch_.members + count, is_other) -
                    scratch_.members;
        }
        for (int64_t i = 0; i < count; ++i) above.add(scratch_.members[i]);
        return {scratch_.members[0], above};
    }

private:
    // The bucket, from the greatest weights down, at which the goal is reached, or else the last
    // non-empty one. Adds the buckets before it to `above`.
    template <class Reached>
    static uint32_t find_bucket(const Tally* buckets, Tally& above, Reached reached) {
        Tally tally = above;
        uint32_t found = 0;
        for (uint32_t bucket = WEIGHT_BUCKETS; bucket-- > 0;) {
            if (buckets[bucket].count == 0) continue;
            found = bucket;
            above = tally;
            tally.add(buckets[bucket]);
            if (reached(tally)) break;
        }
        return found;
    }

    // Collects the weights with that first digit, in vocabulary order.
    int64_t collect(uint32_t first) const {
        const F32 end = set1(float_of((first + 1) << FIRST_SHIFT));
        int64_t count = 0;
        for_weights(std::max(floor_, float_of(first << FIRST_SHIFT)),
                    [&](F32 w, uint32_t at_least) {
                        for_hits(w, at_least & less_bits(w, end),
                                 [&](float weight) { scratch_.members[count++] = weight; });
                    });
        return count;
    }

    // Calls body(F32, bits of the lanes that are positive and at least `least`) where there may be
    // such lanes.
    template <class Body>
    void for_weights(float least, Body body) const {
        const F32 below = just_below(std::max(least, std::numeric_limits<float>::min()));
        for (int64_t group = 0; group < logits_.num_groups(); ++group) {
            if (scratch_.tops[group] * SLACK < least) continue;
            weights_.each(group, [&](int64_t, F32 w) { body(w, less_bits(below, w)); });
        }
    }

    const RowWeights& weights_;
    const LogitRows& logits_;
    const RowScratch& scratch_;
    float floor_;
};

}  // namespace TACO_ISA
