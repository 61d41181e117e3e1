// Linear recurrences over sequences, token by token: the gated delta rule and Mamba 2.
//
// A token's bits depend on its sequence alone, however that is cut into steps. The state of a head
// is cut into columns, which do not depend on each other.
#pragma once

#include <algorithm>
#include <cmath>

#include "elementwise/map_row.h"
#include "isa/vector_math.h"
#include "recurrence/state_slice.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

// x becomes factor * x / |x|.
inline void make_unit(float* x, int64_t size, float factor) {
    constexpr float eps = 1e-6f;
    F32 sums = zero();
    for (int64_t i = 0; i < size; i += LANES) {
        const F32 part = load_lanes(x + i, std::min<int64_t>(LANES, size - i));
        sums = fma(part, part, sums);
    }
    const float scale = factor / std::sqrt(reduce_add(sums) + eps);
    map_row(size, x,
            [=](int64_t i, int64_t count) { return mul(load_lanes(x + i, count), set1(scale)); });
}

// The decay logits of one head or of its columns become factors of the state.
inline void make_factors(float* decay, const float* bias, int64_t size, const float* rates,
                         int64_t rate_step) {
    map_row(size, decay, [=](int64_t i, int64_t count) {
        const F32 sizes = softplus(add(load_lanes(decay + i, count), load_lanes(bias + i, count)));
        const F32 rate = rate_step ? load_lanes(rates + i, count) : set1(*rates);
        return exp(mul(rate, sizes));
    });
}

// Prepares one token for the recurrences of its heads, in place.
inline void prepare_token(const Recurrence& r, int64_t token) {
    float* decay = r.decay.data + token * r.decay.stride;
    if (r.kind == RecurrenceKind::state_space) {
        map_row(r.num_heads, decay, [&](int64_t i, int64_t count) {
            const F32 logits = add(load_lanes(decay + i, count), load_lanes(r.bias + i, count));
            return max(set1(r.min_number), min(set1(r.max_number), softplus(logits)));
        });
        return;
    }
    const float scale = 1 / std::sqrt(float(r.key_dim));
    for (int64_t head = 0; head < r.num_key_heads; ++head) {
        make_unit(r.query.data + token * r.query.stride + head * r.key_dim, r.key_dim, scale);
        make_unit(r.key.data + token * r.key.stride + head * r.key_dim, r.key_dim, 1);
    }
    if (r.decays_columns) {
        for (int64_t head = 0; head < r.num_heads; ++head) {
            const int64_t first = head * r.key_dim;
            make_factors(decay + first, r.bias + first, r.key_dim, r.rates + head, 0);
        }
    } else {
        make_factors(decay, r.bias, r.num_heads, r.rates, 1);
    }
    float* beta = r.beta.data + token * r.beta.stride;
    map_row(r.num_heads, beta, [&](int64_t i, int64_t count) {
        return mul(set1(r.max_number), sigmoid(load_lanes(beta + i, count)));
    });
}

// The sum over i of numbers[i] * row(i).
template <class Row>
inline SliceRow weighted_sum(const float* numbers, int64_t count, Row row) {
    // Several sums, since an addition waits for the one before.
    constexpr int64_t sums = 4;
    SliceRow partial[sums] = {SliceRow::of(0), SliceRow::of(0), SliceRow::of(0), SliceRow::of(0)};
    int64_t i = 0;
    for (; i + sums <= count; i += sums) {
        for (int64_t j = 0; j < sums; ++j) {
            partial[j] = fma(set1(numbers[i + j]), row(i + j), partial[j]);
        }
    }
    for (; i < count; ++i) partial[0] = fma(set1(numbers[i]), row(i), partial[0]);
    return add(add(partial[0], partial[1]), add(partial[2], partial[3]));
}

// The recurrence of some columns of one head in one sequence.
class HeadSlice {
public:
    HeadSlice(const Recurrence& r, int64_t head, int64_t first, int64_t columns)
        : r_(r),
          head_(head),
          key_head_(head / (r.num_heads / r.num_key_heads)),
          first_(first),
          columns_(columns),
          state_(r.key_dim, columns, r.value_dim) {}

    void run(int64_t seq) {
        const StateBatch& batch = r_.batch;
        const int64_t begin = batch.query_start[seq], end = batch.query_start[seq + 1];
        if (begin == end) return;
        const StateRows& states = batch.states;
        const int64_t saved = states.saved_tokens[seq];
        state_.load(states.sources[seq] < 0 ? nullptr : place(states.sources[seq]));
        for (int64_t token = begin; token < end; ++token) {
            run_token(token);
            if (saved == token + 1 - begin) state_.store(place(states.saved_rows[seq]));
        }
        state_.store(place(states.rows[seq]));
    }

private:
    float* place(int64_t row) const {
        return r_.batch.states.memory + row * r_.batch.states.stride + r_.batch.start +
               head_ * r_.key_dim * r_.value_dim + first_;
    }
    const float* of_key(const TokenColumns& columns, int64_t token) const {
        return columns.data + token * columns.stride + key_head_ * r_.key_dim;
    }
    float* of_value(const TokenColumns& columns, int64_t token) const {
        return columns.data + token * columns.stride + head_ * r_.value_dim + first_;
    }

    void run_token(int64_t token) {
        const float *query = of_key(r_.query, token), *key = of_key(r_.key, token);
        const SliceRow value = SliceRow::load_first(of_value(r_.value, token), columns_);
        const float* decay = r_.decay.data + token * r_.decay.stride;
        SliceRow out;
        if (r_.kind == RecurrenceKind::state_space) {
            const float step = decay[head_];
            const F32 factor = exp(set1(r_.rates[head_] * step));
            const SliceRow update = mul(set1(step), value);
            out = advance(query, key, update, [=](int64_t) { return factor; });
            out = fma(set1(r_.skip[head_]), value, out);
        } else {
            const F32 strength = set1(r_.beta.data[token * r_.beta.stride + head_]);
            if (r_.decays_columns) {
                const float* factors = decay + head_ * r_.key_dim;
                decay_rows(factors);
                const SliceRow update = mul(strength, sub(value, read(key)));
                out = advance(query, key, update, [](int64_t) { return set1(1); });
            } else {
                const F32 factor = set1(decay[head_]);
                const SliceRow update = mul(strength, sub(value, mul(factor, read(key))));
                out = advance(query, key, update, [=](int64_t) { return factor; });
            }
        }
        out.store_first(of_value(r_.out, token), columns_);
    }

    // The sum of numbers[i] times row i of the state.
    SliceRow read(const float* numbers) {
        return weighted_sum(numbers, r_.key_dim,
                            [&](int64_t i) { return SliceRow::load(state_.row(i)); });
    }

    void decay_rows(const float* factors) {
        for (int64_t i = 0; i < r_.key_dim; ++i) {
            mul(set1(factors[i]), SliceRow::load(state_.row(i))).store(state_.row(i));
        }
    }

    // Each row of the state becomes factor(i) * row + key[i] * update; then reads it.
    template <class Factor>
    SliceRow advance(const float* query, const float* key, const SliceRow& update, Factor factor) {
        return weighted_sum(query, r_.key_dim, [&](int64_t i) {
            float* row = state_.row(i);
            const SliceRow decayed = mul(factor(i), SliceRow::load(row));
            const SliceRow next = fma(set1(key[i]), update, decayed);
            next.store(row);
            return next;
        });
    }

    const Recurrence& r_;
    const int64_t head_, key_head_, first_, columns_;
    StateSlice state_;
};

inline void recur(Thread& thread, const Recurrence& r) {
    const int64_t num_tokens = r.batch.query_start[r.batch.num_seqs];
    thread.share(num_tokens, 4, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) prepare_token(r, token);
    });
    const int64_t slices = (r.value_dim + SLICE_COLUMNS - 1) / SLICE_COLUMNS;
    thread.share(r.batch.num_seqs * r.num_heads * slices, 1, [&](int64_t item, int64_t) {
        const int64_t first = item % slices * SLICE_COLUMNS, head = item / slices % r.num_heads;
        const int64_t columns = std::min(SLICE_COLUMNS, r.value_dim - first);
        HeadSlice(r, head, first, columns).run(item / slices / r.num_heads);
    });
}

}  // namespace TACO_ISA
