#pragma once

#include <vector>

#include "torch/fused/pointwise/expression.hpp"

namespace autopar::fused::pointwise {

/// What forward keeps for backward: inputs, results, or values between them, which are stored for that alone.
struct Kept {
  Stored value;
  int input = -1;   ///< which input it is, -1 if none
  int result = -1;  ///< which result it is, -1 if none
};

/// The cheapest values that the gradients of the wanted inputs can be computed from: what can be computed again is not
/// kept.
/// @param wanted  by input
/// @param full  by input: whether it has the results' sizes; others are small
/// @cost O(instructions * kept)
[[nodiscard]] std::vector<Kept> values_to_keep(const Expression& expression, const std::vector<bool>& wanted,
                                               const std::vector<bool>& full);

/// The gradients of the wanted inputs, in their order and types. Its inputs are the gradients of the given results, in
/// their order, then what is kept.
/// @param given  by result: whether it has a gradient
[[nodiscard]] Expression gradient_of(const Expression& expression, const std::vector<Kept>& kept,
                                     const std::vector<bool>& wanted, const std::vector<bool>& given);

}  // namespace autopar::fused::pointwise
