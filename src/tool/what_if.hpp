#pragma once

#include <optional>
#include <string>
#include <vector>

#include <autopar/cost/profiled.hpp>
#include <autopar/plan/plan.hpp>

#include "inputs.hpp"

namespace autopar::tool {

/// Where the step of a plan goes, for the average rank in use; the shares sum up to 1.
struct Breakdown {
  double computing = 0, links = 0, waiting = 0;
  double memory = 0;  ///< of the fullest rank
};

[[nodiscard]] Breakdown breakdown_of(const Plan& plan, const Problem& problem);

/// What actions of a plan cost, at its precision.
[[nodiscard]] ProfiledCost costs_of(const Problem& problem, const Plan& plan);

/// One change of the machines, and what the planner makes of it.
struct WhatIf {
  std::string change;
  std::optional<Plan> plan;
  std::string failure;  ///< if there is no plan
};

/// What one more device, 10 % more memory, 10 % faster links and other tensor degrees would buy. @cost a search each
[[nodiscard]] std::vector<WhatIf> changes_of(const Plan& plan, const Problem& problem);

/// Makes the request the one that a plan answers, beside its constraints.
void adopt(const Plan& plan, Problem& problem);

}  // namespace autopar::tool
