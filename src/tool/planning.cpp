#include "planning.hpp"

#include <autopar/plan/planner.hpp>

namespace autopar::tool {

Plan make_plan(const Problem& problem) {
  return Planner<>{}.plan(problem.profile, problem.cluster, problem.request);
}

}  // namespace autopar::tool
