#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/simulate.hpp>

/// Pipelines of stages in a row, on which a forward, an input backward and a weight backward take a second each and
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

/// Each stage reads what the one before it makes, the first reads inputs.
inline Pipeline in_a_row(std::vector<Mesh> stages) {
  Pipeline out{.ranks = 0, .stages = std::move(stages), .channels = {}, .groups = {}};
  for (int s = 0; s < static_cast<int>(out.stages.size()); ++s) {
    out.channels.push_back({s == 0 ? kSource : StageId(s - 1), StageId(s), ChannelKind::kBatched, s > 0});
    for (const Rank rank : out.stages[static_cast<std::size_t>(s)].ranks())
      out.ranks = std::max(out.ranks, rank.value() + 1);
  }
  return out;
}

/// Every rank brings so many samples that no slice is empty.
inline BatchLayout even_layout(const Pipeline& pipeline, int microbatches) {
  return {std::vector<std::int64_t>(static_cast<std::size_t>(pipeline.ranks), microbatches), microbatches};
}

struct EqualTimeline {
  double step = 0, idle = 0;
  std::vector<int> peaks;  // of each rank: chunks of micro-batches held
};

template <SchedulePolicy Policy>
EqualTimeline timeline_of(const Pipeline& pipeline, int microbatches, const Policy& policy) {
  const auto program = make_program(pipeline, even_layout(pipeline, microbatches), policy);
  const auto timeline = simulate(pipeline, program, EqualTimes{});
  return {timeline.step.value(), timeline.idle_share(),
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

/// "F00 F01 B00 W00 …": kind, stage, micro-batch; b for whole backwards.
inline std::string spelled(const std::vector<ComputeAction>& computes) {
  std::string out;
  for (const ComputeAction compute : computes) {
    const char* kind = compute.kind == ActionKind::kForward         ? "F"
                       : compute.kind == ActionKind::kBackward      ? "b"
                       : compute.kind == ActionKind::kBackwardInput ? "B"
                                                                    : "W";
    out += (out.empty() ? "" : " ") + std::string(kind) + std::to_string(compute.stage.value()) +
           std::to_string(compute.microbatch);
  }
  return out;
}

}  // namespace autopar::testing
