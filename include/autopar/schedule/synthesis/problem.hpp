#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>
#include <autopar/schedule/simulate.hpp>

namespace autopar::detail {

/// One compute action of a synthesis problem.
struct SynthesisAction {
  std::size_t stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  friend bool operator==(const SynthesisAction&, const SynthesisAction&) = default;
};

/// What determines the duration of a step, without its batch. Replicas of a stage run their compute actions together,
/// each as long as the largest slice takes. Messages delay only their readers. Ranks that run the same stages form one
/// *lane*. All micro-batches are equal.
struct SynthesisProblem {
  struct Link {
    std::size_t stage;
    double delay;
  };
  struct Stage {
    double forward = 0, backward = 0, input = 0, weight = 0;  // seconds
    double held = 0;                                          // from forward to the (weight) backward
    std::vector<std::size_t> lanes;
    std::vector<Link> values;     // from stages whose forward comes before
    std::vector<Link> gradients;  // from stages whose backward comes before this stage's
    bool split = false;           // its backwards come in two parts
    [[nodiscard]] double seconds(ActionKind kind) const {
      switch (kind) {
        case ActionKind::kForward:
          return forward;
        case ActionKind::kBackward:
          return backward;
        case ActionKind::kBackwardInput:
          return input;
        default:
          return weight;
      }
    }
    [[nodiscard]] ActionKind first_backward() const {
      return split ? ActionKind::kBackwardInput : ActionKind::kBackward;
    }
  };
  struct Lane {
    std::vector<Rank> ranks;
    std::vector<std::size_t> stages;
    double limit = std::numeric_limits<double>::infinity();
    double held = 0;  // of one micro-batch in all stages of the lane
  };
  std::vector<Stage> stages;
  std::vector<Lane> lanes;
  int microbatches = 1;

  /// Index of a compute action in tables of all compute actions.
  [[nodiscard]] std::size_t index(std::size_t stage, ActionKind kind, int microbatch) const {
    const std::size_t part = kind == ActionKind::kForward ? 0 : kind == ActionKind::kBackwardWeight ? 2 : 1;
    return (3 * stage + part) * static_cast<std::size_t>(microbatches) + static_cast<std::size_t>(microbatch);
  }
  [[nodiscard]] std::size_t index(const SynthesisAction& compute) const {
    return index(compute.stage, compute.kind, compute.microbatch);
  }
  /// By stage: the number of micro-batches that the busiest lane can compute during one round trip. A round trip goes
  /// from the stage's forward to the end of the pipeline and back, including all compute actions and messages on the
  /// way.
  [[nodiscard]] std::vector<double> rounds_in_flight() const {
    std::vector<double> below(stages.size(), 0), way(stages.size(), 0);
    double pace = 0;
    for (const Lane& lane : lanes) {
      double work = 0;
      for (const std::size_t s : lane.stages) {
        work += stages[s].forward + (stages[s].split ? stages[s].input + stages[s].weight : stages[s].backward);
      }
      pace = std::max(pace, work);
    }
    for (std::size_t s = stages.size(); s-- > 0;) {
      const Stage& stage = stages[s];
      const double own = stage.forward + stage.seconds(stage.first_backward());
      below[s] += own;
      way[s] = pace > 0 ? (below[s] + (stage.split ? stage.weight : 0)) / pace : 1;
      for (const Link& value : stage.values) {
        double back = value.delay;
        for (const Link& gradient : stages[value.stage].gradients) {
          if (gradient.stage == s) back = value.delay + gradient.delay;
        }
        below[value.stage] = std::max(below[value.stage], below[s] + back);
      }
    }
    return way;
  }

  [[nodiscard]] std::size_t computes() const { return 3 * stages.size() * static_cast<std::size_t>(microbatches); }
};

/// Derives a problem from a pipeline with the simulator's costs.
template <SplitBackwardCosts Costs>
class ProblemReader {
 public:
  ProblemReader(const Pipeline& pipeline, const BatchLayout& layout, const Costs& costs)
      : pipeline_(pipeline), split_(pipeline, layout), costs_(costs) {}

  /// @param held    [stage] what one micro-batch holds
  /// @param limits  [rank], empty: no limit
  [[nodiscard]] SynthesisProblem read(const std::vector<Bytes>& held, const std::vector<Bytes>& limits,
                                      bool parts_backwards) const {
    SynthesisProblem out;
    out.microbatches = split_.microbatches();
    for (std::size_t s = 0; s < pipeline_.stages.size(); ++s) {
      SynthesisProblem::Stage stage;
      const auto largest = largest_slice(StageId::of(s));
      stage.forward = costs_.forward(StageId::of(s), largest).value();
      stage.backward = costs_.backward(StageId::of(s), largest).value();
      stage.input = costs_.backward_input(StageId::of(s), largest).value();
      stage.weight = costs_.backward_weight(StageId::of(s), largest).value();
      stage.split = parts_backwards && stage.weight > 0;
      stage.held = held.empty() ? 1 : static_cast<double>(held[s].value());
      out.stages.push_back(std::move(stage));
    }
    add_lanes(out, limits);
    for (const Channel& channel : pipeline_.channels) {
      if (!channel.from.valid() || !channel.to.valid()) continue;
      out.stages[channel.to.index()].values.push_back({channel.from.index(), delay(channel, Flow::kValue)});
      if (!channel.differentiable) continue;
      out.stages[channel.from.index()].gradients.push_back({channel.to.index(), delay(channel, Flow::kGradient)});
    }
    return out;
  }

  /// A lower bound on the simulated step of any order. A rank runs all its compute actions after the shortest path from
  /// the source to one of its stages.
  [[nodiscard]] Seconds lower_bound() const {
    const std::size_t stages = pipeline_.stages.size();
    std::vector<double> head(stages, 0);  // time before any forward of the stage can start
    double bound = 0;
    for (std::size_t s = 0; s < stages; ++s) {
      for (const Channel& channel : pipeline_.channels) {
        if (channel.to != StageId::of(s) || !channel.from.valid()) continue;
        const std::size_t from = channel.from.index();
        head[s] = std::max(head[s], head[from] + least_forward(channel.from) + least_delay(channel));
      }
    }
    for (int r = 0; r < pipeline_.ranks; ++r) {
      double work = 0, first = std::numeric_limits<double>::infinity();
      for (std::size_t s = 0; s < stages; ++s) {
        const auto replica = pipeline_.stages[s].replica_of(Rank(r));
        if (!replica) continue;
        for (int m = 0; m < split_.microbatches(); ++m) {
          const auto slice = split_.slice(StageId::of(s), *replica, m).size();
          if (slice == 0) continue;
          first = std::min(first, head[s]);
          work += costs_.forward(StageId::of(s), slice).value() +
                  std::min(costs_.backward(StageId::of(s), slice).value(),
                           costs_.backward_input(StageId::of(s), slice).value() +
                               costs_.backward_weight(StageId::of(s), slice).value());
        }
      }
      if (work > 0) bound = std::max(bound, first + work);
    }
    return Seconds(bound);
  }

 private:
  [[nodiscard]] std::int64_t largest_slice(StageId stage) const {
    std::int64_t largest = 0;
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (const MicrobatchSlice& slice : split_.slices(stage, m)) largest = std::max(largest, slice.samples.size());
    }
    return std::max<std::int64_t>(1, largest);
  }

  void add_lanes(SynthesisProblem& out, const std::vector<Bytes>& limits) const {
    std::map<std::vector<std::size_t>, std::size_t> lane_of;  // by the stages that a rank runs
    for (int r = 0; r < pipeline_.ranks; ++r) {
      std::vector<std::size_t> mine;
      for (std::size_t s = 0; s < pipeline_.stages.size(); ++s) {
        if (pipeline_.stages[s].contains(Rank(r))) mine.push_back(s);
      }
      if (mine.empty()) continue;
      const auto [at, added] = lane_of.try_emplace(mine, out.lanes.size());
      if (added) {
        out.lanes.push_back({.ranks = {}, .stages = mine});
        for (const std::size_t s : mine) {
          out.stages[s].lanes.push_back(at->second);
          out.lanes.back().held += out.stages[s].held;
        }
      }
      auto& lane = out.lanes[at->second];
      lane.ranks.push_back(Rank(r));
      if (!limits.empty()) {
        lane.limit = std::min(lane.limit, static_cast<double>(limits[static_cast<std::size_t>(r)].value()));
      }
    }
  }

  /// The delay for the first micro-batch that has samples, until its last receiver has all messages.
  [[nodiscard]] double delay(const Channel& channel, Flow flow) const {
    std::map<Rank, double> arriving;
    for_each_message(channel, flow, [&](const Route& route, double seconds) { arriving[route.to] += seconds; });
    double last = 0;
    for (const auto& [rank, seconds] : arriving) last = std::max(last, seconds);
    return last;
  }

  [[nodiscard]] double least_delay(const Channel& channel) const {
    double least = std::numeric_limits<double>::infinity();
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (const Route& route : split_.routes(channel, m, Flow::kValue)) {
        least = std::min(least, seconds(channel, m, Flow::kValue, route));
      }
    }
    return least < std::numeric_limits<double>::infinity() ? least : 0;
  }

  [[nodiscard]] double least_forward(StageId stage) const {
    double least = std::numeric_limits<double>::infinity();
    std::set<std::int64_t> sizes;
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (const MicrobatchSlice& slice : split_.slices(stage, m)) sizes.insert(slice.samples.size());
    }
    for (const auto size : sizes) least = std::min(least, costs_.forward(stage, size).value());
    return sizes.empty() ? 0 : least;
  }

  template <class Visit>
  void for_each_message(const Channel& channel, Flow flow, const Visit& visit) const {
    for (int m = 0; m < split_.microbatches(); ++m) {
      const auto routes = split_.routes(channel, m, flow);
      for (const Route& route : routes) visit(route, seconds(channel, m, flow, route));
      if (!routes.empty()) return;
    }
  }

  [[nodiscard]] double seconds(const Channel& channel, int m, Flow flow, const Route& route) const {
    if (route.from == route.to) return 0;
    const auto c = static_cast<int>(&channel - pipeline_.channels.data());
    return costs_
        .message(route.from, {.kind = ActionKind::kSend,
                              .stage = writer_of(channel, flow),
                              .microbatch = m,
                              .channel = c,
                              .flow = flow,
                              .peer = route.to,
                              .samples = route.samples})
        .value();
  }

  const Pipeline& pipeline_;
  BatchSplit split_;
  const Costs& costs_;
};

}  // namespace autopar::detail
