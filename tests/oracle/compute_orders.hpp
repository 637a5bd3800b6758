#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/plan/verify/stated_plan.hpp>
#include <autopar/schedule/traits.hpp>

#include "oracle/schedule_laws.hpp"

namespace autopar::oracle {

/// [rank] the order of the rank's compute actions: by the schedule's law, or as the plan states it.
[[nodiscard]] inline std::vector<std::vector<ComputeAction>> compute_orders(const verify::StatedPlan& stated) {
  const Plan& plan = stated.plan;
  if (traits_of(plan.schedule).orders_in_plan) return plan.orders;
  std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(plan.world));
  const auto chunks = static_cast<int>(stated.beside(0).size());
  const int places = static_cast<int>(plan.stages.size()) / chunks;
  for (std::size_t r = 0; r < orders.size(); ++r) {
    const auto& on_rank = stated.stages_on[r];
    if (on_rank.empty()) continue;
    const std::vector<int> stages(on_rank.begin(), on_rank.end());
    ActionScribe scribe(stages, plan.microbatches);
    ScheduleLaws laws(stages.front(), places, chunks, plan.microbatches, scribe);
    write_order(laws, plan.schedule);
    orders[r] = std::move(scribe).written();
  }
  return orders;
}

}  // namespace autopar::oracle
