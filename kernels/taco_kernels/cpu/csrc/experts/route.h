// Routers of a mixture of experts. The choice is made with integer keys, so that it is total and
// the same on every back end; NaN and equal scores included.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "experts/expert_args.h"
#include "isa/partial_vectors.h"
#include "isa/vector_math.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// Orders (score, index) pairs as integers: greater scores first, then lower indices; 0 is below
// all.
inline uint64_t choice_key(float score, int64_t index) {
    const float plain = score + 0.0f;  // of the two zeros the positive one
    uint32_t bits;
    std::memcpy(&bits, &plain, sizeof bits);
    const uint32_t rising = std::isnan(score)   ? 0xffffffff
                            : bits & 0x80000000 ? ~bits
                                                : bits | 0x80000000;
    return uint64_t(rising) << 32 | (0xffffffff - uint32_t(index));
}
inline int64_t chosen_index(uint64_t key) { return int64_t(0xffffffff - uint32_t(key)); }

// The `count` greatest keys, in descending order.
template <int64_t Capacity>
class Best {
public:
    explicit Best(int64_t count) : count_(count) { std::fill_n(keys_, count, 0); }

    void insert(uint64_t key) {
        int64_t i = count_ - 1;
        if (key <= keys_[i]) return;
        for (; i > 0 && keys_[i - 1] < key; --i) keys_[i] = keys_[i - 1];
        keys_[i] = key;
    }
    int64_t index(int64_t rank) const { return chosen_index(keys_[rank]); }

private:
    int64_t count_;
    uint64_t keys_[Capacity];
};

// Rounded from float64, so that every back end adds the bias to the same bits.
inline float sigmoid_score(float logit) { return float(1.0 / (1.0 + std::exp(-double(logit)))); }

inline float group_score(GroupScore kind, const float* scores, int64_t size) {
    const bool is_pair = kind == GroupScore::sum_of_two && size > 1;
    Best<2> best(is_pair ? 2 : 1);
    for (int64_t i = 0; i < size; ++i) best.insert(choice_key(scores[i], i));
    const float greatest = scores[best.index(0)];
    return is_pair ? greatest + scores[best.index(1)] : greatest;
}

// Writes the indices of the `top_k` greatest scores of the best groups.
inline void choose_experts(const Router& router, const float* scores, int32_t* ids) {
    const int64_t group_size = router.num_experts / router.num_groups;
    Best<MAX_TOP_K> best(router.top_k);
    const auto insert_group = [&](int64_t group) {
        for (int64_t i = group * group_size; i < (group + 1) * group_size; ++i) {
            best.insert(choice_key(scores[i], i));
        }
    };
    if (router.top_groups == router.num_groups) {
        for (int64_t group = 0; group < router.num_groups; ++group) insert_group(group);
    } else {
        Best<MAX_EXPERTS> groups(router.top_groups);
        for (int64_t group = 0; group < router.num_groups; ++group) {
            const float score =
                group_score(router.group_score, scores + group * group_size, group_size);
            groups.insert(choice_key(score, group));
        }
        for (int64_t rank = 0; rank < router.top_groups; ++rank) insert_group(groups.index(rank));
    }
    for (int64_t rank = 0; rank < router.top_k; ++rank) ids[rank] = int32_t(best.index(rank));
}

// The softmax over all experts, rounded from float64 like `sigmoid_score`.
inline void softmax_scores(const float* logits, int64_t count, float* scores) {
    const double maximum = *std::max_element(logits, logits + count);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(logits[i] - maximum);
    for (int64_t i = 0; i < count; ++i) scores[i] = float(std::exp(logits[i] - maximum) / sum);
}

// The logit of an expert that takes no part in a softmax.
constexpr float EXCLUDED = -std::numeric_limits<float>::infinity();

// Sum of exp(x - maximum).
inline float sum_exp(const float* numbers, int64_t count, float maximum) {
    F32 sum = zero();
    for (int64_t i = 0; i < count; i += LANES) {
        const bool is_whole = i + LANES <= count;
        const F32 x = is_whole ? load(numbers + i) : load_first(numbers + i, count - i, EXCLUDED);
        sum = add(sum, exp(sub(x, set1(maximum))));
    }
    return reduce_add(sum);
}

// out[i] = scale * exp(numbers[i] - maximum) / sum.
inline void write_softmax(const float* numbers, int64_t count, float maximum, float sum,
                          float scale, float* out) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t lanes = std::min<int64_t>(count - i, LANES);
        const F32 share = div(exp(sub(load_lanes(numbers + i, lanes), set1(maximum))), set1(sum));
        store_lanes(out + i, mul(share, set1(scale)), lanes);
    }
}

inline void weigh_by_softmax(const Router& router, const float* logits, const int32_t* ids,
                             float* weights) {
    float chosen[MAX_TOP_K];
    for (int64_t rank = 0; rank < router.top_k; ++rank) chosen[rank] = logits[ids[rank]];
    const bool among_chosen = router.kind == RouterKind::softmax_topk || router.renormalize;
    // Without a bias it is the greatest of all logits, with groups too: its group is the best.
    const float maximum = *std::max_element(chosen, chosen + router.top_k);
    const float sum = among_chosen ? sum_exp(chosen, router.top_k, maximum)
                                   : sum_exp(logits, router.num_experts, maximum);
    write_softmax(chosen, router.top_k, maximum, sum, router.scale, weights);
}

inline void route_by_softmax(const Router& router, const float* logits, const float* bias,
                             int32_t* ids, float* weights) {
    if (bias) {
        float choices[MAX_EXPERTS];
        softmax_scores(logits, router.num_experts, choices);
        for (int64_t i = 0; i < router.num_experts; ++i) choices[i] += bias[i];
        choose_experts(router, choices, ids);
    } else {
        choose_experts(router, logits, ids);
    }
    weigh_by_softmax(router, logits, ids, weights);
}

inline void route_by_sigmoid(const Router& router, const float* logits, const float* bias,
                             int32_t* ids, float* weights) {
    float scores[MAX_EXPERTS], choices[MAX_EXPERTS];
    for (int64_t i = 0; i < router.num_experts; ++i) {
        scores[i] = sigmoid_score(logits[i]);
        choices[i] = bias ? scores[i] + bias[i] : scores[i];
    }
    choose_experts(router, choices, ids);
    float sum = 0;
    for (int64_t rank = 0; rank < router.top_k; ++rank) sum += scores[ids[rank]];
    const float divisor = router.renormalize ? sum + 1e-20f : 1;
    for (int64_t rank = 0; rank < router.top_k; ++rank) {
        weights[rank] = scores[ids[rank]] / divisor * router.scale;
    }
}

// SparseMixer-v2 without sampling (Liu et al. 2024, "GRIN: GRadient-INformed MoE", section 2): the
// weight of each of two experts is its softmax among the experts whose logits are near its own.
inline void route_by_sparsemixer(const Router& router, const float* logits, int32_t* ids,
                                 float* weights) {
    choose_experts(router, logits, ids);
    float kept[MAX_EXPERTS];
    for (int64_t rank = 0; rank < 2; ++rank) {
        const float maximum = logits[ids[rank]];
        for (int64_t i = 0; i < router.num_experts; ++i) {
            const float factor = std::max(std::fabs(logits[i]), maximum);
            const bool is_far = (maximum - logits[i]) / factor > 2 * router.jitter;
            kept[i] = is_far || (rank == 1 && i == ids[0]) ? EXCLUDED : logits[i];
        }
        const float sum = sum_exp(kept, router.num_experts, maximum);
        write_softmax(&maximum, 1, maximum, sum, router.scale, weights + rank);
    }
}

inline void route_row(const Routing& routing, int64_t row) {
    const Router& router = routing.router;
    const float* logits = routing.logits + row * routing.logits_stride;
    int32_t* ids = routing.ids + row * routing.ids_stride;
    float* weights = routing.weights + row * routing.weights_stride;
    switch (router.kind) {
        case RouterKind::softmax:
        case RouterKind::softmax_topk:
            return route_by_softmax(router, logits, routing.bias, ids, weights);
        case RouterKind::sigmoid:
            return route_by_sigmoid(router, logits, routing.bias, ids, weights);
        case RouterKind::sparsemixer: return route_by_sparsemixer(router, logits, ids, weights);
    }
}

inline void route(Thread& thread, const Routing& routing) {
    constexpr int64_t grain = 8;
    thread.share(routing.count, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) route_row(routing, row);
    });
}

}  // namespace TACO_ISA
