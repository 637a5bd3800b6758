#pragma once

#include <optional>

#include "torch/fused/pointwise/expression.hpp"
#include "torch/fused/pointwise/program.hpp"

namespace autopar::fused::pointwise {

/// The expression of a program; none if it has an operator without a known formula.
/// @cost O(steps)
[[nodiscard]] std::optional<Expression> expression_of(const Program& program);

/// Whether a formula is known for the operator with these arguments.
[[nodiscard]] bool has_formula(const Step& step);

}  // namespace autopar::fused::pointwise
