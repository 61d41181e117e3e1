// Selection of the values with the largest magnitudes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace taco::collective {

// The indices, ascending, of the `num_selected` values with the largest magnitudes; of equal ones
// the first. NaN counts as larger than all. `count` is below 2^32.
//
// A threshold is estimated from a regular sample, as in Deep Gradient Compression (arXiv
// 1712.01887, section 5), and then made exact among the candidates above it.
void select_largest(const float* values, size_t count, size_t num_selected,
                    std::vector<uint32_t>& indices);

// momentum null: residual[i] += gradient[i]. Otherwise momentum[i] = factor * momentum[i] +
// gradient[i] and residual[i] += momentum[i] (momentum correction, arXiv 1712.01887, section 3.1).
void accumulate(float* residual, float* momentum, float factor, const float* gradient,
                size_t count);

}  // namespace taco::collective
