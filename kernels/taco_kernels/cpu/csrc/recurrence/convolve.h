// Causal convolutions of each column of sequences, whose latest inputs are kept as states.
#pragma once

#include <algorithm>

#include "isa/partial_vectors.h"
#include "isa/vector_math.h"
#include "recurrence/recurrence_args.h"
#include "runtime/parallel.h"

namespace TACO_ISA {

constexpr int64_t CONVOLVED_COLUMNS = 16 * LANES;  // of a piece of work
constexpr int64_t MAX_WIDTH = 8;                   // taco_kernels/recurrence_limits.py

// The convolution of some columns in one sequence. Inputs are copied, since outputs may replace
// them.
class ConvolvedColumns {
public:
    ConvolvedColumns(const Convolution& c, int64_t first, int64_t count)
        : c_(c), first_(first), count_(count) {}

    void run(int64_t seq) {
        const StateBatch& batch = c_.batch;
        const int64_t begin = batch.query_start[seq], end = batch.query_start[seq + 1];
        if (begin == end) return;
        const StateRows& states = batch.states;
        const int64_t saved = states.saved_tokens[seq];
        load(states.sources[seq]);
        for (int64_t token = begin; token < end; ++token) {
            std::copy_n(c_.x.data + token * c_.x.stride + first_, count_, input(next_));
            convolve(c_.out.data + token * c_.out.stride + first_);
            ++next_;
            if (saved == token + 1 - begin) store(states.saved_rows[seq]);
        }
        store(states.rows[seq]);
    }

private:
    // The input of the sequence's step number `index`, of the latest `width` ones.
    float* input(int64_t index) { return inputs_[index % c_.width]; }

    float* place(int64_t row, int64_t i) const {
        const StateBatch& batch = c_.batch;
        return batch.states.memory + row * batch.states.stride + batch.start + i * c_.columns +
               first_;
    }
    void load(int32_t row) {
        next_ = c_.width - 1;
        for (int64_t i = 0; i < next_; ++i) {
            if (row < 0) {
                std::fill_n(input(i), count_, 0.0f);
            } else {
                std::copy_n(place(row, i), count_, input(i));
            }
        }
    }
    void store(int32_t row) {
        for (int64_t i = 0; i < c_.width - 1; ++i) {
            std::copy_n(input(next_ - c_.width + 1 + i), count_, place(row, i));
        }
    }

    void convolve(float* out) {
        const float* rows[MAX_WIDTH];
        for (int64_t j = 0; j < c_.width; ++j) rows[j] = input(next_ - c_.width + 1 + j);
        for (int64_t i = 0; i < count_; i += LANES) {
            const int64_t count = std::min<int64_t>(LANES, count_ - i);
            F32 sum = c_.bias ? load_lanes(c_.bias + first_ + i, count) : zero();
            for (int64_t j = 0; j < c_.width; ++j) {
                const F32 weight = load_lanes(c_.weight + j * c_.columns + first_ + i, count);
                sum = fma(weight, load_lanes(rows[j] + i, count), sum);
            }
            store_lanes(out + i, c_.has_silu ? silu(sum) : sum, count);
        }
    }

    const Convolution& c_;
    const int64_t first_, count_;
    int64_t next_ = 0;
    alignas(64) float inputs_[MAX_WIDTH][CONVOLVED_COLUMNS];
};

inline void convolve(Thread& thread, const Convolution& c) {
    const int64_t pieces = (c.columns + CONVOLVED_COLUMNS - 1) / CONVOLVED_COLUMNS;
    thread.share(c.batch.num_seqs * pieces, 1, [&](int64_t item, int64_t) {
        const int64_t first = item % pieces * CONVOLVED_COLUMNS;
        const int64_t count = std::min(CONVOLVED_COLUMNS, c.columns - first);
        ConvolvedColumns(c, first, count).run(item / pieces);
    });
}

}  // namespace TACO_ISA
