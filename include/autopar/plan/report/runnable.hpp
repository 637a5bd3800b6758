#pragma once

#include <algorithm>
#include <set>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/compute_checks.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Whether a plan's schedule runs backwards in two parts.
[[nodiscard]] inline bool parts_backwards(const Plan& plan) {
  if (!traits_of(plan.schedule).orders_in_plan) return !keeps_backwards_whole(plan.schedule);
  return std::ranges::any_of(plan.orders, [](const auto& computes) {
    return std::ranges::any_of(computes,
                               [](ComputeAction compute) { return compute.kind == ActionKind::kBackwardInput; });
  });
}

/// The stages of a plan as a pipeline without channels and groups.
[[nodiscard]] inline Pipeline stages_of(const Plan& plan) {
  Pipeline pipeline;
  pipeline.ranks = plan.world;
  for (const auto& stage : plan.stages) pipeline.stages.push_back(stage.mesh);
  return pipeline;
}

namespace detail {

/// @throws InvalidArgument unless each stage recomputes only its own atoms, each in one segment
inline void check_segments(const Plan& plan) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::set<NodeId> left(plan.stages[s].atoms.begin(), plan.stages[s].atoms.end());
    for (const auto& segment : plan.stages[s].recomputed) {
      for (const NodeId atom : segment) {
        if (left.erase(atom) == 1) continue;
        throw InvalidArgument("the plan lets stage " + std::to_string(s) + " run atom " + std::to_string(atom.value()) +
                              " again, which is not in that stage or is in another segment already; plan again");
      }
    }
  }
}

}  // namespace detail

/// Refuses a plan, from a file or a caller, that needs more than a runtime can do, or whose stages do not have its
/// schedule's layout.
/// @throws InvalidArgument that names what it asks for, or what is wrong
inline void require_runnable(const Plan& plan, const Capabilities& runtime) {
  const auto refuse = [](const std::string& what) {
    throw InvalidArgument("the plan asks for " + what + ", which this version does not run yet; plan again without it");
  };
  const auto& known = runtime.schedules;
  if (std::find(known.begin(), known.end(), plan.schedule) == known.end()) refuse("schedule " + name_of(plan.schedule));
  for (const StagePlan& stage : plan.stages) {
    if (stage.mesh.tensor() > runtime.max_tensor_parallel) refuse("tensor = " + std::to_string(stage.mesh.tensor()));
  }
  if (plan.zero > runtime.max_zero) refuse("ZeRO " + std::to_string(plan.zero));
  if (!runtime.recompute && memory_optimizations_of(plan).recomputes()) refuse("recomputation");
  if (!runtime.offload && plan.offload != Offload::kNone) refuse("offload = optimizer");
  detail::check_segments(plan);
  const auto check = [&]<SchedulePolicy Policy>(const Policy& policy) {
    if constexpr (RankOrderPolicy<Policy>) {
      const Pipeline stages = stages_of(plan);
      detail::check_rank_orders(stages, policy.rank_orders(stages, plan.microbatches), plan.microbatches);
    }
  };
  with_policy(plan.schedule, check, {plan.orders, plan.microbatches});
}

}  // namespace autopar
