#pragma once

#include <vector>

#include "torch/fused/pointwise/expression.hpp"

namespace autopar::fused::pointwise {

/// A value that forward keeps for backward: an input, a result, or an intermediate value that is stored only for that.
struct Kept {
  Stored value;
  int input = -1;   ///< which input it is, -1 if none
  int result = -1;  ///< which result it is, -1 if none
};

/// The cheapest set of values from which the gradients of the wanted inputs can be computed. Values that can be
/// recomputed from others are not kept.
/// @param wanted  by input
/// @param full  by input: whether it has the results' sizes; other inputs are small
/// @cost O(instructions * kept)
[[nodiscard]] std::vector<Kept> values_to_keep(const Expression& expression, const std::vector<bool>& wanted,
                                               const std::vector<bool>& full);

/// The gradients of the wanted inputs, in their order and types. The expression's inputs are the gradients of the given
/// results, in their order, then the kept values.
/// @param given  by result: whether it has a gradient
[[nodiscard]] Expression gradient_of(const Expression& expression, const std::vector<Kept>& kept,
                                     const std::vector<bool>& wanted, const std::vector<bool>& given);

}  // namespace autopar::fused::pointwise
