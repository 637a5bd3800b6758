#pragma once

#include <functional>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/outcome.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

/// A planner as a function: `Planner<…>::try_plan` with an observer.
using PlanFunction = std::function<PlanOutcome(const ModelProfile&, const ProfiledCost&, const Cluster&,
                                               const PlanRequest&, const PlanObserver&)>;

/// `Planner<>{}.plan` (planner.hpp), compiled once in the library autopar::planner: a compiler takes longer to
/// instantiate a planner than for the rest of most programs. Equal costs give equal plans.
[[nodiscard]] Plan plan_with_defaults(const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                                      const PlanRequest& request, const PlanObserver& observer = {});

/// With costs from the cluster's peak rates alone.
[[nodiscard]] Plan plan_with_defaults(const ModelProfile& profile, const Cluster& cluster, const PlanRequest& request,
                                      const PlanObserver& observer = {});

/// `Planner<>{}.try_plan`, compiled once.
[[nodiscard]] PlanOutcome try_plan_with_defaults(const ModelProfile& profile, const ProfiledCost& costs,
                                                 const Cluster& cluster, const PlanRequest& request,
                                                 const PlanObserver& observer = {});

/// `Planner<>{}.depends_on_costs`, compiled once.
[[nodiscard]] bool depends_on_costs(const ModelProfile& profile, const Cluster& cluster, const PlanRequest& request);

}  // namespace autopar
