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
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Seconds until what never happens; bytes without a limit.
inline constexpr double kForever = std::numeric_limits<double>::infinity();

/// Compute actions by lane of a synthesis problem.
using LaneOrders = std::vector<std::vector<ComputeAction>>;

/// A solution of a synthesis problem.
struct OrdersFound {
  LaneOrders orders;
  double makespan = kForever;
  ScheduleKind origin = kSynthesisedSchedule;
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
      if (kind == ActionKind::kForward) return forward;
      if (kind == ActionKind::kBackward) return backward;
      return kind == ActionKind::kBackwardInput ? input : weight;
    }
    [[nodiscard]] ActionKind first_backward() const {
      return split ? ActionKind::kBackwardInput : ActionKind::kBackward;
    }
  };
  struct Lane {
    std::vector<Rank> ranks;
    std::vector<std::size_t> stages;
    double limit = kForever;
    double held = 0, work = 0;  // bytes and seconds of one micro-batch in all stages of the lane
  };
  std::vector<Stage> stages;
  std::vector<Lane> lanes;
  int microbatches = 1;

  [[nodiscard]] const Stage& stage_of(ComputeAction compute) const { return stages[compute.stage.index()]; }

  /// Index of a compute action in tables of all compute actions. A backward has the index of its input backward.
  [[nodiscard]] std::size_t index(ComputeAction compute) const {
    const std::size_t part = compute.kind == ActionKind::kForward          ? 0
                             : compute.kind == ActionKind::kBackwardWeight ? 2
                                                                           : 1;
    return (3 * compute.stage.index() + part) * static_cast<std::size_t>(microbatches) +
           static_cast<std::size_t>(compute.microbatch);
  }
  [[nodiscard]] std::size_t computes() const { return 3 * stages.size() * static_cast<std::size_t>(microbatches); }

  /// Calls `visit(input, delay)` for every compute action whose data an action needs.
  template <class Visit>
  void for_each_input(ComputeAction compute, const Visit& visit) const {
    const auto visit_links = [&](const std::vector<Link>& links, bool backwards) {
      for (const Link& link : links) {
        const ActionKind kind = backwards ? stages[link.stage].first_backward() : ActionKind::kForward;
        visit(ComputeAction{kind, compute.microbatch, StageId::of(link.stage)}, link.delay);
      }
    };
    if (compute.kind == ActionKind::kBackwardWeight) {
      visit(ComputeAction{ActionKind::kBackwardInput, compute.microbatch, compute.stage}, 0.0);
    } else if (compute.kind == ActionKind::kForward) {
      visit_links(stage_of(compute).values, false);
    } else {
      visit(ComputeAction{ActionKind::kForward, compute.microbatch, compute.stage}, 0.0);
      visit_links(stage_of(compute).gradients, true);
    }
  }

  /// When an action has all data.
  /// @param end  by index: the end of every compute action
  [[nodiscard]] double ready(ComputeAction compute, const std::vector<double>& end) const {
    double ready = 0;
    for_each_input(compute,
                   [&](ComputeAction input, double delay) { ready = std::max(ready, end[index(input)] + delay); });
    return ready;
  }

  [[nodiscard]] bool fits(const std::vector<ComputeAction>& order, const Lane& lane) const {
    return peak_held(order, [&](ComputeAction compute) { return stage_of(compute).held; }) <= lane.limit;
  }

  /// By stage: the number of micro-batches that the busiest lane can compute during one round trip. A round trip goes
  /// from the stage's forward to the end of the pipeline and back, including all compute actions and messages on the
  /// way.
  [[nodiscard]] std::vector<double> rounds_in_flight() const {
    std::vector<double> below(stages.size(), 0), way(stages.size(), 0);
    double pace = 0;
    for (const Lane& lane : lanes) pace = std::max(pace, lane.work);
    for (std::size_t s = stages.size(); s-- > 0;) {
      const Stage& stage = stages[s];
      below[s] += stage.forward + stage.seconds(stage.first_backward());
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
      const auto id = StageId::of(s);
      const auto sizes = slice_sizes(id);
      const std::int64_t largest = sizes.empty() ? 1 : *sizes.rbegin();
      SynthesisProblem::Stage& stage = out.stages.emplace_back();
      stage.forward = costs_.forward(id, largest).value();
      stage.backward = costs_.backward(id, largest).value();
      stage.input = costs_.backward_input(id, largest).value();
      stage.weight = costs_.backward_weight(id, largest).value();
      stage.split = parts_backwards && stage.weight > 0;
      stage.held = held.empty() ? 1 : static_cast<double>(held[s].value());
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
    std::vector<double> head(pipeline_.stages.size(), 0);  // time before any forward of the stage can start
    std::vector<double> first(static_cast<std::size_t>(pipeline_.ranks), kForever), work(first.size(), 0);
    for (std::size_t s = 0; s < head.size(); ++s) {
      const auto id = StageId::of(s);
      for (const Channel& channel : pipeline_.channels) {
        if (channel.to != id || !channel.from.valid()) continue;
        const double before = head[channel.from.index()] + least_forward(channel.from) + least_delay(channel);
        head[s] = std::max(head[s], before);
      }
      for (int m = 0; m < split_.microbatches(); ++m) {
        for (const MicrobatchSlice& slice : split_.slices(id, m)) {
          const auto samples = slice.samples.size();
          double& seconds = work[slice.rank.index()];
          seconds += costs_.forward(id, samples).value() +
                     std::min(costs_.backward(id, samples).value(),
                              costs_.backward_input(id, samples).value() + costs_.backward_weight(id, samples).value());
          first[slice.rank.index()] = std::min(first[slice.rank.index()], head[s]);
        }
      }
    }
    double bound = 0;
    for (std::size_t r = 0; r < work.size(); ++r) {
      if (work[r] > 0) bound = std::max(bound, first[r] + work[r]);
    }
    return Seconds(bound);
  }

 private:
  [[nodiscard]] std::set<std::int64_t> slice_sizes(StageId stage) const {
    std::set<std::int64_t> sizes;
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (const MicrobatchSlice& slice : split_.slices(stage, m)) sizes.insert(slice.samples.size());
    }
    return sizes;
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
      if (added) out.lanes.push_back({.ranks = {}, .stages = mine});
      auto& lane = out.lanes[at->second];
      lane.ranks.push_back(Rank(r));
      if (!limits.empty()) {
        lane.limit = std::min(lane.limit, static_cast<double>(limits[static_cast<std::size_t>(r)].value()));
      }
      for (std::size_t i = 0; added && i < mine.size(); ++i) {
        auto& stage = out.stages[mine[i]];
        stage.lanes.push_back(at->second);
        lane.held += stage.held;
        lane.work += stage.forward + (stage.split ? stage.input + stage.weight : stage.backward);
      }
    }
  }

  /// The delay for the first micro-batch that has samples, until its last receiver has all messages.
  [[nodiscard]] double delay(const Channel& channel, Flow flow) const {
    std::map<Rank, double> arriving;
    for (int m = 0; m < split_.microbatches() && arriving.empty(); ++m) {
      for (const Route& route : split_.routes(channel, m, flow)) arriving[route.to] += seconds(channel, m, flow, route);
    }
    double last = 0;
    for (const auto& [rank, seconds] : arriving) last = std::max(last, seconds);
    return last;
  }

  [[nodiscard]] double least_delay(const Channel& channel) const {
    double least = kForever;
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (const Route& route : split_.routes(channel, m, Flow::kValue)) {
        least = std::min(least, seconds(channel, m, Flow::kValue, route));
      }
    }
    return least < kForever ? least : 0;
  }

  [[nodiscard]] double least_forward(StageId stage) const {
    const auto sizes = slice_sizes(stage);
    double least = kForever;
    for (const auto size : sizes) least = std::min(least, costs_.forward(stage, size).value());
    return sizes.empty() ? 0 : least;
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
