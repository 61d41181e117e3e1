#include "collective/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace taco::collective {
namespace {

constexpr size_t kMinSamples = 4096;
constexpr size_t kSampledPart = 128;  // one sample per this number of values
constexpr size_t kBlock = 32;

// The order of magnitudes is that of these integers; NaN is above infinity.
uint32_t magnitude(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

struct Candidate {
    uint32_t magnitude, index;
};

__attribute__((target_clones("avx512f", "avx2", "default"))) void find_candidates(
    const float* values, size_t count, uint32_t threshold, std::vector<Candidate>& candidates) {
    candidates.clear();
    for (size_t begin = 0; begin < count; begin += kBlock) {
        const size_t length = std::min(kBlock, count - begin);
        uint32_t num_above = 0;
        if (length == kBlock) {
            for (size_t i = 0; i < kBlock; ++i) {
                num_above += magnitude(values[begin + i]) >= threshold;
            }
            if (num_above == 0) continue;
        }
        for (size_t i = begin; i < begin + length; ++i) {
            const uint32_t bits = magnitude(values[i]);
            if (bits >= threshold) candidates.push_back({bits, static_cast<uint32_t>(i)});
        }
    }
}

}  // namespace

void select_largest(const float* values, size_t count, size_t num_selected,
                    std::vector<uint32_t>& indices) {
    indices.clear();
    num_selected = std::min(num_selected, count);
    if (num_selected == 0) return;
    const size_t num_samples = std::min(count, std::max(kMinSamples, count / kSampledPart));
    std::vector<uint32_t> samples(num_samples);
    for (size_t i = 0; i < num_samples; ++i) {
        samples[i] = magnitude(values[i * count / num_samples]);
    }
    // A little more than needed: three standard deviations of the sample's count.
    const double expected = static_cast<double>(num_selected) * num_samples / count;
    double wanted = expected + 3 * std::sqrt(expected) + 1;
    std::vector<Candidate> candidates;
    for (;;) {
        uint32_t threshold = 0;
        if (wanted < static_cast<double>(num_samples)) {
            const auto nth = samples.begin() + static_cast<ptrdiff_t>(wanted);
            std::nth_element(samples.begin(), nth, samples.end(), std::greater<uint32_t>());
            threshold = *nth;
        }
        find_candidates(values, count, threshold, candidates);
        if (candidates.size() >= num_selected) break;
        wanted *= 2;
    }
    std::vector<uint32_t> magnitudes(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) magnitudes[i] = candidates[i].magnitude;
    const auto last = magnitudes.begin() + static_cast<ptrdiff_t>(num_selected - 1);
    std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<uint32_t>());
    const uint32_t smallest = *last;
    size_t num_equal = num_selected;  // of the smallest magnitude: what the larger ones leave
    for (const Candidate& candidate : candidates) num_equal -= candidate.magnitude > smallest;
    for (const Candidate& candidate : candidates) {
        if (candidate.magnitude < smallest) continue;
        if (candidate.magnitude == smallest && num_equal-- == 0) {
            num_equal = 0;
            continue;
        }
        indices.push_back(candidate.index);
    }
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void accumulate(
    float* residual, float* momentum, float factor, const float* gradient, size_t count) {
    if (momentum == nullptr) {
        for (size_t i = 0; i < count; ++i) residual[i] += gradient[i];
        return;
    }
    for (size_t i = 0; i < count; ++i) {
        momentum[i] = factor * momentum[i] + gradient[i];
        residual[i] += momentum[i];
    }
}

}  // namespace taco::collective
