#pragma once

#include <vector>

#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/simulate.hpp>
#include <autopar/testing/pipelines.hpp>
#include <autopar/testing/spelled.hpp>

/// Pipelines on which a forward, an input backward and a weight backward take a second each and
/// messages nothing: what closed forms are about.
namespace autopar::testing {

struct EqualTimes {
  [[nodiscard]] Seconds forward(StageId, std::int64_t) const { return Seconds(1); }
  [[nodiscard]] Seconds backward(StageId, std::int64_t) const { return Seconds(2); }
  [[nodiscard]] Seconds backward_input(StageId, std::int64_t) const { return Seconds(1); }
  [[nodiscard]] Seconds backward_weight(StageId, std::int64_t) const { return Seconds(1); }
  [[nodiscard]] Seconds message(Rank, const Action&) const { return {}; }
  [[nodiscard]] Seconds reduce(const Action&) const { return {}; }
};

/// Positions 0 … n-1 of so many ranks each.
inline Positions positions_of(const std::vector<int>& replicas) {
  Positions out;
  int rank = 0;
  for (const int r : replicas) {
    std::vector<Rank> ranks;
    for (int q = 0; q < r; ++q) ranks.push_back(Rank(rank++));
    out.emplace_back(std::move(ranks));
  }
  return out;
}
inline Positions single_ranks(int positions) {
  return positions_of(std::vector<int>(static_cast<std::size_t>(positions), 1));
}

/// The idle share of a step, averaged over the ranks that compute at all, in [0, 1).
inline double idle_share(const Timeline& timeline) {
  double sum = 0;
  int computing = 0;
  for (const Seconds time : timeline.busy) {
    sum += time.value();
    computing += time.value() > 0 ? 1 : 0;
  }
  return computing == 0 || timeline.step.value() <= 0 ? 0 : 1 - sum / (computing * timeline.step.value());
}

struct EqualTimeline {
  double step = 0, idle = 0;
  std::vector<int> peaks;  // of each rank: chunks of micro-batches held
};

template <SchedulePolicy Policy>
EqualTimeline timeline_of(const Pipeline& pipeline, int microbatches, const Policy& policy) {
  const auto program = make_program(pipeline, even_layout(pipeline, microbatches), policy);
  const auto timeline = simulate(pipeline, program, EqualTimes{});
  return {timeline.step.value(), idle_share(timeline),
          peak_activations(program, [](StageId, std::int64_t) { return 1; })};
}

/// What a program has its ranks compute, in order.
inline std::vector<std::vector<ComputeAction>> computes_of(const Program& program) {
  std::vector<std::vector<ComputeAction>> out(program.ranks.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    for (const Action& action : program.ranks[r]) {
      if (is_compute(action.kind)) out[r].push_back({action.kind, action.microbatch, action.stage});
    }
  }
  return out;
}

}  // namespace autopar::testing
