// Tokens and log probabilities of rows of logits.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sampling/sampling_args.h"
#include "sampling/token_masks.h"
#include "selftest.h"

namespace {

// A vocabulary of more than one segment (64 groups of 256 tokens), with an odd end.
constexpr int64_t ROWS = 5, VOCAB = 64 * 256 + 3 * 256 + 7;

struct Filters {
    float temperature, min_p;
    int32_t top_k;
    float top_p;
    double uniform;
};

const Filters filters[ROWS] = {
    {0, 0, 0, 1, 0.5},        {1, 0, 0, 1, 0.73},       {0.7f, 0, 40, 1, 0.31},
    {1.3f, 0.02f, 0, 1, 0.9}, {0.9f, 0, 0, 0.8f, 0.05},
};

// Weights of the tokens that the filters leave.
Doubles kept_weights(const float* logits, const Filters& filter) {
    const double best = *std::max_element(logits, logits + VOCAB);
    Doubles weights;
    for (int64_t i = 0; i < VOCAB; ++i) {
        const double weight = std::exp((logits[i] - best) / filter.temperature);
        weights.push_back(weight < filter.min_p ? 0 : weight);
    }
    Doubles ranked = weights;
    std::sort(ranked.begin(), ranked.end(), std::greater<double>());
    double floor = filter.top_k ? ranked[size_t(filter.top_k - 1)] : 0;
    if (filter.top_p < 1) {
        const double share = filter.top_p * std::accumulate(ranked.begin(), ranked.end(), 0.0);
        double sum = 0;
        for (size_t i = 0; sum < share; ++i) {
            sum += ranked[i];
            floor = ranked[i];
        }
    }
    for (double& weight : weights) weight = weight < floor ? 0 : weight;
    return weights;
}

// Does the token's part of the distribution hold the row's uniform number, but for rounding?
bool is_right(const float* logits, const Filters& filter, int64_t token) {
    if (token < 0 || token >= VOCAB) return false;
    if (filter.temperature == 0) return token == std::max_element(logits, logits + VOCAB) - logits;
    const Doubles weights = kept_weights(logits, filter);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double below = std::accumulate(weights.begin(), weights.begin() + token, 0.0) / total;
    const double own = weights[size_t(token)] / total;
    constexpr double slack = 1e-5;
    return own > 0 && below <= filter.uniform + slack && filter.uniform - slack < below + own;
}

void check_choice(const Subject& subject, LogitRows logits) {
    float temperature[ROWS], min_p[ROWS], top_p[ROWS];
    int32_t top_k[ROWS];
    double uniforms[ROWS];
    int64_t tokens[ROWS];
    for (int row = 0; row < ROWS; ++row) {
        temperature[row] = filters[row].temperature;
        min_p[row] = filters[row].min_p;
        top_k[row] = filters[row].top_k;
        top_p[row] = filters[row].top_p;
        uniforms[row] = filters[row].uniform;
    }
    Bytes scratch(taco_sampling_scratch(&logits, 3));
    const SamplingMetadata metadata = {logits, temperature, min_p,  top_k,
                                       top_p,  uniforms,    tokens, scratch.data()};
    taco_sample_tokens(subject.pool, &metadata);
    for (int row = 0; row < ROWS; ++row) {
        subject.report.check(subject.name("token of row " + std::to_string(row)),
                             is_right(logits.row(row), filters[row], tokens[row]),
                             std::to_string(tokens[row]));
    }
}

void check_logprobs(const Subject& subject, LogitRows logits) {
    constexpr int64_t top = 6, width = top + 1;
    std::vector<int64_t> token_ids, ids(ROWS * width), ranks(ROWS);
    for (int64_t row = 0; row < ROWS; ++row) token_ids.push_back(row * 4001 % VOCAB);
    const std::vector<int32_t> num_top(ROWS, int32_t(top));
    Floats values(ROWS * width);
    Bytes scratch(taco_sampling_scratch(&logits, 3));
    const Logprobs wanted = {logits,     token_ids.data(), num_top.data(), width,
                             ids.data(), values.data(),    ranks.data(),   scratch.data()};
    taco_gather_logprobs(subject.pool, &wanted);

    bool ids_right = true, ranks_right = true;
    Doubles want;
    for (int64_t row = 0; row < ROWS; ++row) {
        const float* numbers = logits.row(row);
        std::vector<int64_t> order(VOCAB);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return numbers[a] > numbers[b]; });
        const int64_t own = token_ids[size_t(row)];
        const int64_t* got = ids.data() + row * width;
        ids_right &= got[0] == own && std::equal(got + 1, got + width, order.begin());
        const int64_t greater =
            std::count_if(numbers, numbers + VOCAB, [&](float x) { return x > numbers[own]; });
        ranks_right &= ranks[size_t(row)] == greater + 1;
        double sum = 0;
        for (int64_t i = 0; i < VOCAB; ++i) sum += std::exp(double(numbers[i]));
        for (int64_t i = 0; i < width; ++i) want.push_back(numbers[got[i]] - std::log(sum));
    }
    subject.report.check(subject.name("ids of the most likely tokens"), ids_right);
    subject.report.check(subject.name("ranks"), ranks_right);
    subject.report.close(subject.name("log probabilities"), values, want, 1e-6);
}

// Rows 0, 2 and 4 have masks: of no token, of every third one, and of all.
void check_masks(const Subject& subject, LogitRows logits) {
    const int64_t num_words = ceil_div(VOCAB, MASK_WORD_TOKENS);
    std::vector<uint32_t> bits(size_t(3 * num_words), 0);
    std::fill(bits.begin() + 2 * num_words, bits.end(), 0xffffffff);
    for (int64_t i = 0; i < VOCAB; i += 3) {
        bits[size_t(num_words + i / MASK_WORD_TOKENS)] |= 1u << i % MASK_WORD_TOKENS;
    }
    const int32_t of_row[ROWS] = {0, -1, 1, -1, 2};
    Floats want(logits.data, logits.data + ROWS * logits.stride);
    for (int64_t i = 0; i < VOCAB; ++i) {
        want[size_t(i)] = -INFINITY;
        if (i % 3) want[size_t(2 * logits.stride + i)] = -INFINITY;
    }
    const TokenMasks masks = {bits.data(), num_words, of_row};
    taco_mask_logits(subject.pool, &logits, &masks);
    subject.report.check(subject.name("masked logits"),
                         std::equal(want.begin(), want.end(), logits.data));
}

}  // namespace

void check_sampling(const Subject& subject) {
    constexpr int64_t stride = VOCAB + 5;
    Floats numbers = Random(7).normal(ROWS * stride);
    for (float& x : numbers) x *= 2;
    const LogitRows logits = {numbers.data(), ROWS, VOCAB, stride};
    numbers[100] = numbers[9000] = 20;  // of two equal ones the lower
    check_choice(subject, logits);
    check_logprobs(subject, logits);
    check_masks(subject, logits);
}
