#include "planning.hpp"

#include <autopar/cost/precision.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/planner.hpp>

namespace autopar::tool {

Plan make_plan(const Problem& problem) {
  const ProfiledCost costs(at_precision(problem.cluster, problem.request.options.precision), problem.measured);
  return Planner<>{}.plan(problem.profile, costs, problem.cluster, problem.request);
}

}  // namespace autopar::tool
