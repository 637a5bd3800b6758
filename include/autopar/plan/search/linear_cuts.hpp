#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/memory/held_by_nodes.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// What a cut minimises: the slowest stage, or the memory of the stage that needs most.
enum class CutGoal : std::uint8_t { kTime, kMemory };

/// Cuts a topological order into consecutive stages with the smallest bottleneck, among the cuts whose stages fit by
/// themselves; if none fit, among all cuts. The bottleneck is the forward and backward of the largest slice. What must
/// be recomputed to fit adds a proportional part of the forward.
class LinearCuts {
 public:
  explicit LinearCuts(const StepObjective& objective)
      : objective_(objective), order_(topological_order(objective.work().graph)) {
    const HeldByNodes nodes(objective.work(), objective.constraints());
    const std::size_t n = order_.size();
    held_.assign((n + 1) * (n + 1), {});
    for (std::size_t i = 0; i < n; ++i) {
      LeastHeld held;
      std::vector<bool> read(nodes.tied.size(), false);
      for (std::size_t j = i; j < n; ++j) {
        held += nodes.held[order_[j].index()];
        for (const std::size_t tied : nodes.tied_of[order_[j].index()]) {
          if (!read[tied]) held += nodes.tied[tied].held;
          read[tied] = true;
        }
        held_[i * (n + 1) + j + 1] = held;
      }
    }
  }

  struct Cut {
    Staging staging;
    double bottleneck = 0;  ///< seconds or, for CutGoal::kMemory, bytes: at most the true peak
  };

  /// @return the best cut for these replicas, micro-batches and schedule; nothing if there are more stages than nodes
  [[nodiscard]] std::optional<Cut> cut(const std::vector<int>& replicas, int microbatches, ScheduleKind schedule,
                                       CutGoal goal = CutGoal::kTime) const {
    if (replicas.size() > order_.size()) return std::nullopt;
    Cut cut{{std::vector<int>(order_.size()), replicas, microbatches, schedule}};
    if (goal == CutGoal::kTime && fill(cut, goal, true)) return cut;
    if (!fill(cut, goal, false)) return std::nullopt;
    return cut;
  }

 private:
  struct Sums {
    std::vector<double> time, forward;
    std::vector<std::int64_t> saved, workspace;  // workspace: of each node
  };

  [[nodiscard]] Sums sums(std::int64_t slice) const {
    const auto& costs = objective_.work().node_costs(slice);
    Sums out{{0}, {0}, {0}, {}};
    for (const NodeId node : order_) {
      out.forward.push_back(out.forward.back() + costs[node.index()].forward.value());
      out.time.push_back(out.time.back() + (costs[node.index()].forward + costs[node.index()].backward).value());
      out.saved.push_back(out.saved.back() + costs[node.index()].saved.value());
      out.workspace.push_back(costs[node.index()].workspace.value());
    }
    return out;
  }

  bool fill(Cut& cut, CutGoal goal, bool must_fit) const {
    Staging& staging = cut.staging;
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    const std::size_t n = order_.size(), stages = staging.replicas.size();
    std::vector<double> best(n + 1, kInfinite);
    best[0] = 0;
    std::vector<std::vector<std::size_t>> from(stages, std::vector<std::size_t>(n + 1, n));
    for (std::size_t s = 0; s < stages; ++s) {
      const auto slice = objective_.slices().at(staging.microbatches, staging.replicas[s], staging.stages()).largest;
      const Sums total = sums(slice);
      const int in_flight = peak_in_flight(staging.schedule, objective_.work().loss_mode, static_cast<int>(s),
                                           staging.stages(), staging.microbatches);
      std::vector<double> next(n + 1, kInfinite);
      for (std::size_t j = s + 1; j + (stages - s - 1) <= n; ++j) {
        std::int64_t workspace = 0;
        for (std::size_t i = j; i-- > s;) {
          // The workspace of each node, beside what it and earlier nodes keep.
          workspace = std::max(workspace, total.workspace[i] - (total.saved[j] - total.saved[i + 1]));
          if (best[i] == kInfinite) continue;
          const std::int64_t saved = (total.saved[j] - total.saved[i]) * in_flight;
          const std::int64_t held = held_[i * (n + 1) + j].at(staging.replicas[s]) + workspace;
          const double recompute = recomputes() ? recomputed(held, saved) : 0;
          const double own = goal == CutGoal::kTime
                                 ? total.time[j] - total.time[i] + recompute * (total.forward[j] - total.forward[i])
                                 : static_cast<double>(recomputes() ? held : held + saved);
          const double bottleneck = std::max(best[i], own);
          if (bottleneck >= next[j]) continue;
          const bool fits = recomputes() ? recompute < 1 : held + saved <= objective_.constraints().memory.value();
          if (must_fit && !fits) continue;
          if (mixes_samples(i, j) && staging.replicas[s] > 1) continue;
          next[j] = bottleneck;
          from[s][j] = i;
        }
      }
      best = std::move(next);
    }
    if (best[n] == kInfinite) return false;
    cut.bottleneck = best[n];
    for (std::size_t s = stages, end = n; s-- > 0; end = from[s][end]) {
      for (std::size_t i = from[s][end]; i < end; ++i) staging.stage_of[order_[i].index()] = static_cast<int>(s);
    }
    return true;
  }

  [[nodiscard]] bool recomputes() const { return objective_.constraints().recompute != Recompute::kNever; }
  /// The part of what is saved that does not fit, at most 1.
  [[nodiscard]] double recomputed(std::int64_t held, std::int64_t saved) const {
    const std::int64_t over = held + saved - objective_.constraints().memory.value();
    if (over <= 0) return 0;
    return over < saved ? static_cast<double>(over) / static_cast<double>(saved) : 1;
  }

  [[nodiscard]] bool mixes_samples(std::size_t begin, std::size_t end) const {
    return std::any_of(order_.begin() + static_cast<std::ptrdiff_t>(begin),
                       order_.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](NodeId node) { return objective_.work().graph[node].whole_batch; });
  }

  const StepObjective& objective_;
  std::vector<NodeId> order_;
  std::vector<LeastHeld> held_;  // [begin * (n + 1) + end] parameters, gradients, states
};

/// The numbers of stages that a staging may have, ascending.
[[nodiscard]] inline std::vector<int> stage_counts(const StepObjective& objective) {
  const Constraints& constraints = objective.constraints();
  const int most = std::min<int>(constraints.world, static_cast<int>(objective.work().graph.node_count()));
  std::vector<int> counts;
  for (int stages = 1; stages <= most; ++stages) {
    if (constraints.stages == 0 || stages == constraints.stages) counts.push_back(stages);
  }
  return counts;
}

/// The fixed replicas of so many stages; otherwise as equal as possible: the last stages have no fewer than the first.
[[nodiscard]] inline std::vector<int> even_replicas(const Constraints& constraints, int stages) {
  if (constraints.replicas_are_fixed()) return constraints.fixed_replicas(stages);
  std::vector<int> replicas;
  for (int s = 0; s < stages; ++s)
    replicas.push_back((s + 1) * constraints.world / stages - s * constraints.world / stages);
  return replicas;
}

}  // namespace autopar::detail
