#pragma once

#include <autopar/plan/outcome.hpp>
#include <autopar/plan/plan.hpp>

#include "inputs.hpp"

namespace autopar::tool {

/// The default planner on a problem. @throws InvalidArgument, CaptureError as `Planner::try_plan`
[[nodiscard]] PlanOutcome try_plan(const Problem& problem);

/// The same. @throws InfeasiblePlan, too, if there is no plan
[[nodiscard]] inline Plan make_plan(const Problem& problem) { return plan_of(try_plan(problem)); }

}  // namespace autopar::tool
