#pragma once

#include <optional>

#include "torch/fused/pointwise/expression.hpp"
#include "torch/fused/pointwise/program.hpp"

namespace autopar::fused::pointwise {

/// The expression of a program; nothing if it has an operator that no formula is known for.
/// @cost O(steps)
[[nodiscard]] std::optional<Expression> expression_of(const Program& program);

/// Whether a formula is known for the operator, given these arguments.
[[nodiscard]] bool has_formula(const Step& step);

}  // namespace autopar::fused::pointwise
