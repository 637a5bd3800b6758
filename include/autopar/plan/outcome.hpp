#pragma once

#include <utility>
#include <variant>

#include <autopar/core/error.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar {

/// What a planner answers: a plan, or why there is none.
using PlanOutcome = std::variant<Plan, Infeasible>;

/// The plan. @throws InfeasiblePlan if there is none
[[nodiscard]] inline Plan plan_of(PlanOutcome outcome) {
  if (auto* why = std::get_if<Infeasible>(&outcome)) throw InfeasiblePlan(std::move(*why));
  return std::get<Plan>(std::move(outcome));
}

}  // namespace autopar
