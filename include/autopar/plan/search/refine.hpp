#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/step/estimate.hpp>

namespace autopar {

/// Improves a staging step by step under QuickEstimate, as long as it gets faster: moves nodes across stage borders and
/// ranks between stages. Never violates the constraints.
class LocalSearch {
 public:
  explicit LocalSearch(const StepObjective& objective) : objective_(objective), estimate_(objective) {}

  /// @param budget  most estimates @return the improved staging and its estimate
  [[nodiscard]] std::pair<Staging, double> improve(Staging staging, int budget) {
    double best = estimate_(staging);
    while (budget > 0) {
      Staging better = staging;
      double found = best;
      for (Staging& neighbour : neighbours(staging)) {
        if (budget-- <= 0) break;
        const double step = estimate_(neighbour, found);
        if (step < found * (1 - 1e-9)) {
          found = step;
          better = std::move(neighbour);
        }
      }
      if (found >= best) break;
      best = found;
      staging = std::move(better);
    }
    return {std::move(staging), best};
  }

  [[nodiscard]] double estimate(const Staging& staging) { return estimate_(staging); }

 private:
  [[nodiscard]] std::vector<Staging> neighbours(const Staging& staging) const {
    std::vector<Staging> out;
    const auto add = [&](Staging next) {
      if (meets(objective_.constraints(), objective_.work(), next)) out.push_back(std::move(next));
    };
    const auto nodes = nodes_by_stage(staging);
    const int stages = staging.stages();
    for (int s = 0; s + 1 < stages; ++s) {
      for (const int count : {1, 4, 16}) {
        for (const bool down : {true, false}) {
          Staging next = staging;
          if (shift(next, s, down, count, nodes)) add(std::move(next));
        }
      }
    }
    if (!objective_.constraints().replicas_are_fixed()) move_ranks(staging, add);
    return out;
  }

  /// Moves `count` nodes across the border between stages s and s + 1, each only if that is legal at its turn.
  bool shift(Staging& staging, int s, bool down, int count, const std::vector<std::vector<NodeId>>& nodes) const {
    const auto& graph = objective_.work().graph;
    const auto& from = nodes[static_cast<std::size_t>(down ? s : s + 1)];
    if (static_cast<int>(from.size()) <= count) return false;
    const int target = down ? s + 1 : s, source = down ? s : s + 1;
    int moved = 0;
    for (std::size_t i = 0; i < from.size() && moved < count; ++i) {
      const NodeId node = down ? from[from.size() - 1 - i] : from[i];
      const bool blocked =
          down ? std::ranges::any_of(graph.successors(node),
                                     [&](NodeId next) { return staging.stage_of[next.index()] == source; })
               : std::ranges::any_of(graph.predecessors(node),
                                     [&](NodeId before) { return staging.stage_of[before.index()] == source; });
      if (blocked) continue;
      staging.stage_of[node.index()] = target;
      ++moved;
    }
    return moved == count;
  }

  template <class Add>
  void move_ranks(const Staging& staging, const Add& add) const {
    const int stages = staging.stages();
    const bool spare = staging.ranks() < objective_.constraints().world;
    for (int to = 0; to < stages; ++to) {
      if (spare) {
        Staging next = staging;
        ++next.replicas[static_cast<std::size_t>(to)];
        add(std::move(next));
      }
      for (const int from : {to - 1, to + 1}) {
        if (from < 0 || from >= stages || staging.replicas[static_cast<std::size_t>(from)] == 1) continue;
        Staging next = staging;
        ++next.replicas[static_cast<std::size_t>(to)];
        --next.replicas[static_cast<std::size_t>(from)];
        add(std::move(next));
      }
    }
  }

  const StepObjective& objective_;
  QuickEstimate estimate_;
};

}  // namespace autopar
