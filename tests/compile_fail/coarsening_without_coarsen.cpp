// expect: Planner: the coarsening policy does not model CoarseningPolicy: it needs
// expect: `Partition coarsen(const Workload&, std::int64_t samples, int least_blocks) const`
// expect: policy.coarsen(work, samples, least_blocks)
#include <autopar/plan/planner.hpp>

struct MyCoarsening {
  using policy_category = autopar::coarsening_policy_tag;
  autopar::Partition coarsen(const autopar::Workload& work) const;  // too few parameters
};

autopar::Plan planned(const autopar::ModelProfile& profile, const autopar::Cluster& cluster) {
  return autopar::Planner{MyCoarsening{}}.plan(profile, cluster, {});
}
