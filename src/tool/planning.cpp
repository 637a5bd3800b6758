#include "planning.hpp"

#include <autopar/cost/precision.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/io/progress.hpp>
#include <autopar/plan/plan_with_defaults.hpp>

namespace autopar::tool {

PlanOutcome try_plan(const Problem& problem) {
  const ProfiledCost costs(at_precision(problem.cluster, problem.request.options.precision), problem.measured);
  const auto& level = problem.request.options.log_level;
  const bool is_quiet = level.starts_with("error") || level.starts_with("off");
  Progress progress("autopar plans", is_quiet ? ProgressScreen{} : standard_error());
  return try_plan_with_defaults(problem.profile, costs, problem.cluster, problem.request,
                                [&](const std::string& phase) { progress.now(phase); });
}

}  // namespace autopar::tool
