#include <autopar/plan/plan_with_defaults.hpp>

#include <autopar/cost/precision.hpp>
#include <autopar/plan/planner.hpp>

namespace autopar {

Plan plan_with_defaults(const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                        const PlanRequest& request, const PlanObserver& observer) {
  return plan_of(try_plan_with_defaults(profile, costs, cluster, request, observer));
}

Plan plan_with_defaults(const ModelProfile& profile, const Cluster& cluster, const PlanRequest& request,
                        const PlanObserver& observer) {
  const ProfiledCost costs(at_precision(cluster, request.options.precision), {});
  return plan_with_defaults(profile, costs, cluster, request, observer);
}

PlanOutcome try_plan_with_defaults(const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                                   const PlanRequest& request, const PlanObserver& observer) {
  Planner<> planner;
  planner.observer = observer;
  return planner.try_plan(profile, costs, cluster, request);
}

bool depends_on_costs(const ModelProfile& profile, const Cluster& cluster, const PlanRequest& request) {
  return Planner<>{}.depends_on_costs(profile, cluster, request);
}

}  // namespace autopar
