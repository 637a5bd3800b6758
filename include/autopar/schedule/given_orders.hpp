#pragma once

#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// Orders that are given, by a synthesiser or a plan.
struct GivenOrders {
  using policy_category = schedule_policy_tag;
  std::vector<std::vector<ComputeAction>> orders;  ///< by rank
  int microbatches = 0;                            ///< number of micro-batches in the orders

  /// The orders without the micro-batches that a call does not have. Orders without a cycle stay so.
  /// @throws InvalidArgument if the call has more micro-batches than the orders
  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline&, int wanted) const {
    if (wanted > microbatches) {
      throw InvalidArgument("schedule synth: orders of " + std::to_string(microbatches) + " micro-batches cannot run " +
                            std::to_string(wanted) + "; synthesise orders for these");
    }
    auto out = orders;
    for (auto& computes : out)
      std::erase_if(computes, [&](const ComputeAction compute) { return compute.microbatch >= wanted; });
    return out;
  }
};
static_assert(SchedulePolicy<GivenOrders>);

}  // namespace autopar
