#pragma once

#include <string>

#include <autopar/plan/concepts.hpp>

/// What was measured, but for one module that is so many times as slow.
struct SlowModuleCosts : autopar::ProfiledCost {
  static constexpr bool kCostsByValue = false;  // the path counts

  std::string path;
  double times = 1;

  [[nodiscard]] autopar::NodeCost node(const autopar::ModelGraph& graph, autopar::NodeId id, double samples) const {
    autopar::NodeCost cost = ProfiledCost::node(graph, id, samples);
    if (!autopar::is_within(graph[id].path, path)) return cost;
    for (autopar::Seconds* time : {&cost.forward, &cost.backward, &cost.backward_weight}) *time = *time * times;
    return cost;
  }
};

/// A user's policy that plans with them.
struct SlowModule {
  using policy_category = autopar::cost_policy_tag;

  std::string path;
  double times = 1;

  [[nodiscard]] SlowModuleCosts costs(const autopar::ModelProfile&, const autopar::ProfiledCost& measured) const {
    return {{measured}, path, times};
  }
};
static_assert(autopar::CostPolicy<SlowModule>);
