#include <autopar/plan/plan_with_defaults.hpp>

#include <autopar/cost/precision.hpp>
#include <autopar/plan/planner.hpp>

namespace autopar {

Plan plan_with_defaults(const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                        const PlanRequest& request, const PlanObserver& observer) {
  Planner<> planner;
  planner.observer = observer;
  return planner.plan(profile, costs, cluster, request);
}

Plan plan_with_defaults(const ModelProfile& profile, const Cluster& cluster, const PlanRequest& request,
                        const PlanObserver& observer) {
  const ProfiledCost costs(at_precision(cluster, request.options.precision), {});
  return plan_with_defaults(profile, costs, cluster, request, observer);
}

}  // namespace autopar
