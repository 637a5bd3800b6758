#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/schedule/restated_orders.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// [rank] the order of the rank's compute actions: by the schedule's law, or as the plan states it.
[[nodiscard]] inline std::vector<std::vector<ComputeAction>> compute_orders(const StatedPlan& stated) {
  const Plan& plan = stated.plan();
  const ScheduleTraits& schedule = traits_of(plan.schedule);
  if (schedule.orders_in_plan) return plan.orders;
  std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(plan.world));
  const auto chunks = static_cast<int>(stated.stages_on(stated.ranks_of(0).front().index()).size());
  const int places = stated.stages() / chunks;
  for (std::size_t r = 0; r < orders.size(); ++r) {
    const auto& stages = stated.stages_on(r);
    if (stages.empty()) continue;
    ActionScribe scribe(stages, plan.microbatches);
    ScheduleLaws laws(stages.front(), places, chunks, plan.microbatches, scribe);
    (laws.*schedule.restated)();
    orders[r] = std::move(scribe).written();
  }
  return orders;
}

}  // namespace autopar::detail
