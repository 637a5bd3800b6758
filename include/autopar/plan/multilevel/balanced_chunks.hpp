#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/step/objective.hpp>

namespace autopar::detail {

/// Moves the borders of stages that share ranks. What a rank computes is the sum of its stages, and stages of one round
/// (one of each position) follow each other closely. So all positions get about the same seconds, and stages of one
/// round about the same. Rounds of more nodes come first: a micro-batch that reaches a shorter round waits for the
/// longer one before it, and forwards are shorter than backwards. Stages become intervals of one topological order,
/// with at least one node each.
/// @pre the staging says which stages share their ranks, or each has its own
/// @cost O(edges + nodes log nodes)
class BalancedChunks {
 public:
  BalancedChunks(const StepObjective& objective, Staging staging)
      : objective_(objective),
        staging_(std::move(staging)),
        positions_(stages_of_positions(staging_)),
        order_(topological_order(objective.work().graph)) {
    std::ranges::stable_sort(order_, {}, [&](NodeId node) { return staging_.stage_of[node.index()]; });
    share_ = seconds_of_nodes(0);
    const double all = std::accumulate(share_.begin(), share_.end(), 0.0);
    for (double& one : share_) one = all > 0 ? one / all : 1 / static_cast<double>(share_.size());
    for (const auto& stages : positions_) {
      const auto seconds = seconds_of_nodes(stages.front());
      speed_.push_back(1 / std::max(1e-300, std::accumulate(seconds.begin(), seconds.end(), 0.0)));
    }
    const double speeds = std::accumulate(speed_.begin(), speed_.end(), 0.0);
    for (double& one : speed_) one /= speeds;
  }

  [[nodiscard]] Staging balanced() && {
    std::vector<double> due(positions_.size(), 0), done(positions_.size(), 0);  // shares of the model's seconds
    std::size_t next = 0;
    for (int s = 0; s < staging_.stages(); ++s) {
      const auto p = static_cast<std::size_t>(staging_.position(s));
      const auto round =
          static_cast<std::size_t>(std::ranges::find(positions_[p], std::size_t(s)) - positions_[p].begin());
      const double nodes = nodes_of_round(round, positions_[p].size());
      due[p] += nodes / nodes_each() * speed_[p];
      const std::size_t last = order_.size() - static_cast<std::size_t>(staging_.stages() - 1 - s);
      for (bool is_first = true; next < last; is_first = false, ++next) {
        const double own = share_[order_[next].index()];
        if (!is_first && s + 1 < staging_.stages() && done[p] + own / 2 > due[p]) break;
        staging_.stage_of[order_[next].index()] = s;
        done[p] += own;
      }
      if (nodes != std::floor(nodes)) due[p] = done[p];  // the odd nodes are distributed in this round alone
    }
    return std::move(staging_);
  }

 private:
  [[nodiscard]] std::vector<double> seconds_of_nodes(std::size_t stage) const {
    const int replicas = staging_.replicas[stage];
    const auto slice = objective_.slices().at(staging_.microbatches, replicas, staging_.stages()).largest;
    std::vector<double> out;
    for (const NodeCost& cost : objective_.work().node_costs(slice))
      out.push_back((cost.forward + cost.backward).value());
    return out;
  }
  /// The average number of nodes of a position.
  [[nodiscard]] double nodes_each() const {
    return static_cast<double>(order_.size()) / static_cast<double>(positions_.size());
  }
  /// The average number of nodes of a stage in a round: whole, but for the round in which it shrinks by one.
  [[nodiscard]] double nodes_of_round(std::size_t round, std::size_t rounds) const {
    const auto count = static_cast<double>(rounds);
    const double few = std::floor(nodes_each() / count);
    const auto passed = [&](double done) { return std::min(done * (few + 1), nodes_each() - (count - done) * few); };
    const auto at = static_cast<double>(round);
    return passed(at + 1) - passed(at);
  }

  const StepObjective& objective_;
  Staging staging_;
  std::vector<std::vector<std::size_t>> positions_;  // stages
  std::vector<NodeId> order_;
  std::vector<double> share_;  // by node, of the model's seconds
  std::vector<double> speed_;  // by position, of the sum of all
};

[[nodiscard]] inline Staging balanced_chunks(const StepObjective& objective, Staging staging) {
  return BalancedChunks(objective, std::move(staging)).balanced();
}

}  // namespace autopar::detail
