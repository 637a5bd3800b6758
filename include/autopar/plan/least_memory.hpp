#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/objective.hpp>
#include <autopar/plan/uniform_staging.hpp>

namespace autopar {

/// A staging that needs little memory, and how much its worst rank needs.
struct LeastMemory {
  Staging staging;
  Bytes peak{};
  StageId stage;  ///< the one that needs most
};

namespace detail {

/// Cuts a topological order into stages so that the largest stage memory (boundaries aside) is smallest.
class LeastMemoryCuts {
 public:
  explicit LeastMemoryCuts(const StepObjective& objective) : objective_(objective), cuts_(objective) {}

  [[nodiscard]] std::optional<LeastMemory> best() {
    const Constraints& constraints = objective_.constraints();
    const int nodes = static_cast<int>(objective_.work().graph.node_count());
    std::optional<LeastMemory> least;
    for (int stages = 1; stages <= std::min(constraints.world, nodes); ++stages) {
      if (constraints.stages > 0 && stages != constraints.stages) continue;
      for (const auto& replicas : replica_choices(stages)) {
        for (const int microbatches : {constraints.microbatches.front(), constraints.microbatches.back()}) {
          auto staging = cuts_.cut(replicas, microbatches, least_in_flight(), CutGoal::kMemory);
          if (!staging || !meets(constraints, objective_.work(), *staging)) continue;
          const LeastMemory found = measured(std::move(*staging));
          if (!least || found.peak < least->peak) least = found;
        }
      }
    }
    return least;
  }

 private:
  /// 1F1B never holds more micro-batches than GPipe.
  [[nodiscard]] ScheduleKind least_in_flight() const {
    const auto& allowed = objective_.constraints().schedules;
    const auto found = std::find(allowed.begin(), allowed.end(), ScheduleKind::kOneFOneB);
    return found != allowed.end() ? *found : allowed.front();
  }

  /// Replicas share activations, so using every rank is best; with operators that mix samples, single ones too.
  [[nodiscard]] std::vector<std::vector<int>> replica_choices(int stages) const {
    const Constraints& constraints = objective_.constraints();
    if (!constraints.replicas.empty()) return {constraints.replicas};
    std::vector<std::vector<int>> choices{even_replicas(constraints.world, stages)};
    choices.emplace_back(choices.front().rbegin(), choices.front().rend());
    choices.emplace_back(static_cast<std::size_t>(stages), 1);
    // The first stages hold the most micro-batches under 1F1B.
    std::vector<int> first_heavy(static_cast<std::size_t>(stages), 1);
    first_heavy.front() += constraints.world - stages;
    choices.push_back(std::move(first_heavy));
    return choices;
  }

  [[nodiscard]] LeastMemory measured(Staging staging) const {
    const SizedPipeline sized = make_pipeline(objective_.work(), staging,
                                              place(staging.replicas, Placement::kReplicasTogether),
                                              objective_.constraints().world);
    const auto memory = predict_memory(objective_.work(), objective_.constraints(), staging, sized, objective_.shares());
    LeastMemory out{std::move(staging), {}, StageId(0)};
    for (std::size_t s = 0; s < memory.size(); ++s) {
      if (memory[s].total() <= out.peak) continue;
      out.peak = memory[s].total();
      out.stage = StageId::of(s);
    }
    return out;
  }

  const StepObjective& objective_;
  LinearCuts cuts_;
};

}  // namespace detail

/// The staging that needs the least memory of those along one topological order with even replicas; nothing if the
/// constraints leave no staging at all.
[[nodiscard]] inline std::optional<LeastMemory> least_memory(const StepObjective& objective) {
  return detail::LeastMemoryCuts(objective).best();
}

}  // namespace autopar
