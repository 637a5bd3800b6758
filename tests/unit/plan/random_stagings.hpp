#pragma once

#include <algorithm>
#include <vector>

#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/step/stage_table.hpp>
#include <autopar/testing/dice.hpp>

namespace autopar::test {

/// Any pipeline of a graph: random cuts of a random topological order, up to `world` ranks.
inline Staging random_staging(testing::Dice& dice, const Workload& work, int world) {
  const int n = static_cast<int>(work.graph.node_count());
  const int stages = dice(1, std::min(n, world));
  Staging staging;
  staging.stage_of.assign(static_cast<std::size_t>(n), 0);
  std::vector<NodeId> order;
  std::vector<bool> placed(static_cast<std::size_t>(n), false);
  while (static_cast<int>(order.size()) < n) {
    const NodeId node(dice(0, n - 1));
    bool ready = !placed[node.index()];
    for (const NodeId before : work.graph.predecessors(node)) ready = ready && placed[before.index()];
    if (!ready) continue;
    placed[node.index()] = true;
    order.push_back(node);
  }
  for (int s = 0, at = 0; s < stages; ++s) {
    const int end = s + 1 == stages ? n : dice(at + 1, n - (stages - s - 1));
    for (; at < end; ++at) staging.stage_of[order[static_cast<std::size_t>(at)].index()] = s;
    staging.replicas.push_back(1);
  }
  for (int spare = world - stages; spare > 0; --spare) {
    if (dice.chance(60)) ++staging.replicas[static_cast<std::size_t>(dice(0, stages - 1))];
  }
  staging.microbatches = dice(1, 6);
  staging.schedule = dice.chance(50) ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
  return staging;
}

/// The stages of a staging with one stage a rank as differences of tails, by stage; `to` is invalid if it is no tail.
inline std::vector<detail::StageNodes> stages_of(const DownsetLattice& tails, const Staging& staging) {
  const auto nodes = nodes_by_stage(staging);
  std::vector<detail::StageNodes> stages(nodes.size());
  NodeSet tail(tails.node_count());
  DownsetId from = tails.empty_set();
  for (std::size_t s = nodes.size(); s-- > 0;) {
    for (const NodeId node : nodes[s]) {
      tail.insert(node);
      stages[s].nodes |= detail::bit(node);
    }
    stages[s].from = from;
    stages[s].to = from = tails.find(tail).value_or(DownsetId::none());
  }
  return stages;
}

}  // namespace autopar::test
