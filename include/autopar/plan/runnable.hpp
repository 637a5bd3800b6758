#pragma once

#include <algorithm>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/savings.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/turn_checks.hpp>

namespace autopar {

/// Whether a plan's schedule runs backwards in two parts.
[[nodiscard]] inline bool parts_backwards(const Plan& plan) {
  if (plan.schedule != ScheduleKind::kSynthesised) return !keeps_backwards_whole(plan.schedule);
  return std::ranges::any_of(plan.orders, [](const auto& turns) {
    return std::ranges::any_of(turns, [](Turn turn) { return turn.kind == ActionKind::kBackwardInput; });
  });
}

/// The stages of a plan where they lie, with nothing between them.
[[nodiscard]] inline Pipeline stages_of(const Plan& plan) {
  Pipeline pipeline;
  pipeline.ranks = plan.world;
  for (const auto& stage : plan.stages) pipeline.stages.push_back(stage.ranks);
  return pipeline;
}

/// Refuses a plan, from a file or a caller, that asks for more than a runtime can do, or whose stages do not lie where its
/// schedule wants them.
/// @throws InvalidArgument that names what it asks for, or what is wrong
inline void require_runnable(const Plan& plan, const Capabilities& runtime) {
  const auto refuse = [](const std::string& what) {
    throw InvalidArgument("the plan asks for " + what + ", which this version does not run yet; plan again without it");
  };
  const auto& known = runtime.schedules;
  if (std::find(known.begin(), known.end(), name_of(plan.schedule)) == known.end())
    refuse("schedule " + name_of(plan.schedule));
  if (plan.zero > runtime.max_zero) refuse("ZeRO " + std::to_string(plan.zero));
  if (!runtime.recompute && savings_of(plan).recomputes()) refuse("recomputation");
  const auto check = [&]<SchedulePolicy Policy>(const Policy& policy) {
    if constexpr (RankOrderPolicy<Policy>) {
      const Pipeline stages = stages_of(plan);
      detail::check_rank_orders(stages, policy.rank_orders(stages, plan.microbatches), plan.microbatches);
    }
  };
  with_policy(plan.schedule, check, {plan.orders, plan.microbatches});
}

}  // namespace autopar
