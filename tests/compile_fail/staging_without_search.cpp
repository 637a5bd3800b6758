// expect: Planner: the staging policy does not model StagingPolicy: it needs
// expect: `SearchResult search(const StepObjective&) const`
// expect: policy.search(objective)
#include <autopar/plan/planner.hpp>

struct MyStaging {
  using policy_category = autopar::staging_policy_tag;
  autopar::SearchResult serach(const autopar::StepObjective& objective) const;
};

autopar::Plan planned(const autopar::ModelProfile& profile, const autopar::Cluster& cluster) {
  return autopar::Planner{MyStaging{}}.plan(profile, cluster, {});
}
