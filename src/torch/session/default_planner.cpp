#include <autopar/cost/profiled.hpp>
#include <autopar/plan/planner.hpp>
#include <autopar/torch/session.hpp>

namespace autopar {

Plan plan_with_defaults(const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                        const PlanRequest& request, const PlanObserver& observer) {
  Planner<> planner;
  planner.observer = observer;
  return planner.plan(profile, costs, cluster, request);
}

}  // namespace autopar
