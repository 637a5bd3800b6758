#include "planning.hpp"

#include <autopar/cost/profiled.hpp>
#include <autopar/plan/planner.hpp>

namespace autopar::tool {

Plan make_plan(const Problem& problem) {
  const ProfiledCost costs(problem.cluster, problem.measured);
  return Planner<>{}.plan(problem.profile, costs, problem.cluster, problem.request);
}

}  // namespace autopar::tool
