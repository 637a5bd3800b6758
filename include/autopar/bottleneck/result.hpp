#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/bottleneck/tables.hpp>

namespace autopar {

/// The result of a search.
struct BottleneckResult {
  std::vector<VariantStage> stages;                          ///< in pipeline order; empty if no plan was found
  double seconds = std::numeric_limits<double>::infinity();  ///< of the slowest stage
  double lower_bound = 0;   ///< no plan has a slowest stage below this; infinite if there is no plan
  int checks = 0;           ///< number of limits that were decided
  std::int64_t states = 0;  ///< number of states that were expanded
};

/// Seconds of the slowest stage of a pipeline. @pre each node is in one stage; degrees and variants exist
[[nodiscard]] inline double slowest_of(const VariantTables& tables, const std::vector<VariantStage>& stages) {
  const auto position = [](const std::vector<int>& values, int value) {
    return static_cast<std::size_t>(std::find(values.begin(), values.end(), value) - values.begin());
  };
  std::vector<std::size_t> stage_of(tables.graph.node_count());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const NodeId node : stages[s].nodes) stage_of[node.index()] = s;
  }
  double slowest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::size_t t = position(tables.tensor_degrees, stages[s].tensor_degree);
    const std::size_t d = position(tables.replicas, stages[s].replicas);
    double work = 0, border = 0, parameters = 0;
    for (std::size_t i = 0; i < stages[s].nodes.size(); ++i) {
      const NodeId node = stages[s].nodes[i];
      const NodeVariant& v = tables.variants[node.index()][t][static_cast<std::size_t>(stages[s].variants[i])];
      work += v.work;
      parameters += v.parameters;
      std::size_t e = 0;
      for (const EdgeId edge : tables.graph.in_edges(node)) {
        if (stage_of[tables.graph.source(edge).index()] != s) border += v.in[e];
        ++e;
      }
      e = 0;
      for (const EdgeId edge : tables.graph.out_edges(node)) {
        if (stage_of[tables.graph.target(edge).index()] != s) border += v.out[e];
        ++e;
      }
    }
    slowest = std::max(
        slowest, work * tables.work_share[d] + border * tables.border_cost[d] + parameters * tables.parameter_cost[d]);
  }
  return slowest;
}

}  // namespace autopar
