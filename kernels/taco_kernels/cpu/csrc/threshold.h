// The weight at which a filter cuts: radix selection over the bits of the weights, ten at a time.
#pragma once

#include "row_weights.h"

namespace TACO_ISA {

// A weight is at most 1, whose bits fill three digits.
constexpr int DIGIT_BITS = 10;
constexpr int FIRST_SHIFT = 2 * DIGIT_BITS;
inline uint32_t digit(float weight, int shift) {
    return bits_of(weight) >> shift & (WEIGHT_BUCKETS - 1);
}

inline F32 just_below_positive(float x) {
    return just_below(std::max(x, std::numeric_limits<float>::min()));
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

// Adds the weights of a group that are above 0 and at least `tally_floor` to the buckets; gives the
// sum of those that are at least `floor`.
inline float tally_group(const RowWeights& weights, int64_t group, float floor, float tally_floor,
                         Tally* buckets) {
    const F32 dropped = just_below(floor), untallied = just_below_positive(tally_floor);
    F32 sum = zero();
    weights.each(group, [&](int64_t, F32 w) {
        sum = add(sum, select_less(dropped, w, w, zero()));
        for_hits(w, less_bits(untallied, w),
                 [=](float weight) { buckets[digit(weight, FIRST_SHIFT)].add(weight); });
    });
    return reduce_add(sum);
}

struct Cut {
    float weight;  // the least that is kept; all of that weight are
    Tally kept;
};

class Selection {
public:
    // `buckets` holds all weights of at least `floor` by their first digit.
    Selection(const RowWeights& weights, const LogitRows& logits, const RowScratch& scratch,
              const Tally* buckets, float floor)
        : weights_(weights), logits_(logits), scratch_(scratch), buckets_(buckets), floor_(floor) {}

    // Keeps the greatest weights until reached(their tally), or all of them.
    template <class Reached>
    Cut cut(Reached reached) const {
        Tally above{};
        const uint32_t first = find_bucket(buckets_, above, reached);
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
    // The bucket, from the greatest weights down, with which the goal is reached, or else the last
    // one that is not empty. Adds to `above` those before it.
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

    // Weights with that first digit, in the order of the vocabulary.
    int64_t collect(uint32_t first) const {
        const float least = std::max(floor_, float_of(first << FIRST_SHIFT));
        const F32 below = just_below_positive(least);
        const F32 end = set1(float_of((first + 1) << FIRST_SHIFT));
        int64_t count = 0;
        for (int64_t group = 0; group < logits_.num_groups(); ++group) {
            if (scratch_.tops[group] * SLACK < least) continue;
            weights_.each(group, [&](int64_t, F32 w) {
                for_hits(w, less_bits(below, w) & less_bits(w, end),
                         [&](float weight) { scratch_.members[count++] = weight; });
            });
        }
        return count;
    }

    const RowWeights& weights_;
    const LogitRows& logits_;
    const RowScratch& scratch_;
    const Tally* buckets_;
    float floor_;
};

}  // namespace TACO_ISA
