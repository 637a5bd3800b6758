// expect: Planner: the cost policy does not model CostPolicy: it needs
// expect: `costs(const ModelProfile&, const ProfiledCost&) const`
// expect: policy.costs(profile, measured)
#include <autopar/plan/planner.hpp>

struct MyCosts {
  using policy_category = autopar::cost_policy_tag;
  autopar::ProfiledCost costs(const autopar::ProfiledCost& measured) const;  // too few parameters
};

autopar::Plan planned(const autopar::ModelProfile& profile, const autopar::Cluster& cluster) {
  return autopar::Planner{MyCosts{}}.plan(profile, cluster, {});
}
