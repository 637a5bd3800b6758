#pragma once

#include <algorithm>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/pipeline.hpp>
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
[[nodiscard]] inline Pipeline stages_of(const Plan& plan) { return {plan.world, meshes_of(plan), {}, {}}; }

/// Refuses a plan, from a file or a caller, that needs more than a runtime can do. Whether it is sound is for
/// `require_sound` to say.
/// @throws InvalidArgument that names what it asks for
inline void require_runnable(const Plan& plan, const Capabilities& runtime) {
  const auto refuse = [](const std::string& what) {
    throw InvalidArgument("the plan asks for " + what + ", which this version does not run yet; plan again without it");
  };
  if (std::ranges::count(runtime.schedules, plan.schedule) == 0) refuse("schedule " + name_of(plan.schedule));
  for (const StagePlan& stage : plan.stages) {
    if (stage.mesh.tensor() > runtime.max_tensor_parallel) refuse("tensor = " + std::to_string(stage.mesh.tensor()));
  }
  if (plan.zero > runtime.max_zero) refuse("ZeRO " + std::to_string(plan.zero));
  if (!runtime.recompute && memory_optimizations_of(plan).recomputes()) refuse("recomputation");
  if (!runtime.offload && plan.offload != Offload::kNone) refuse("offload = optimizer");
}

}  // namespace autopar
