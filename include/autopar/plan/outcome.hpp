#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>

#include <autopar/core/error.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar {

/// Receives one line for each phase of a planner, as the phase begins. The plan does not depend on it.
using PlanObserver = std::function<void(const std::string& phase)>;

/// What a planner answers: a plan, or why there is none.
using PlanOutcome = std::variant<Plan, Infeasible>;

/// The plan. @throws InfeasiblePlan if there is none
[[nodiscard]] inline Plan plan_of(PlanOutcome outcome) {
  if (auto* why = std::get_if<Infeasible>(&outcome)) throw InfeasiblePlan(std::move(*why));
  return std::get<Plan>(std::move(outcome));
}

}  // namespace autopar
