#pragma once

#include <autopar/plan/plan.hpp>

#include "inputs.hpp"

namespace autopar::tool {

/// The default planner on a problem. @throws InvalidArgument, CaptureError, InfeasiblePlan as `Planner::plan`
[[nodiscard]] Plan make_plan(const Problem& problem);

}  // namespace autopar::tool
