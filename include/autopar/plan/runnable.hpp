#pragma once

#include <algorithm>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/savings.hpp>

namespace autopar {

/// Refuses a plan, from a file or a caller, that asks for more than a runtime can do.
/// @throws InvalidArgument that names what it asks for
inline void require_runnable(const Plan& plan, const Capabilities& runtime) {
  const auto refuse = [](const std::string& what) {
    throw InvalidArgument("the plan asks for " + what + ", which this version does not run yet; plan again without it");
  };
  const auto& known = runtime.schedules;
  if (std::find(known.begin(), known.end(), name_of(plan.schedule)) == known.end())
    refuse("schedule " + name_of(plan.schedule));
  if (plan.zero > runtime.max_zero) refuse("ZeRO " + std::to_string(plan.zero));
  if (!runtime.recompute && savings_of(plan).recomputes()) refuse("recomputation");
}

}  // namespace autopar
