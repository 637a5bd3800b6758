#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/schedule/synthesis/problem.hpp>

namespace autopar::detail {

/// How list scheduling chooses among the compute actions that a lane could start.
struct SynthesisRule {
  enum class Kinds : std::uint8_t { kBackwardFirst, kForwardFirst, kAlternate, kWeightFirst };
  enum class Chunks : std::uint8_t { kFurthest, kNearest, kEarliest };  // in pipeline order; kEarliest: by micro-batch
  Kinds kinds = Kinds::kBackwardFirst;
  Chunks chunks = Chunks::kFurthest;
  double slack = kForever;  // a stage may have this times its `rounds_in_flight()` micro-batches in flight
  double patience = 0;      // for something better, a lane waits up to this share of a weight backward
  const std::vector<double>* urgency = nullptr;  // by index; if given it decides, largest first
};

/// List scheduling: among the compute actions whose data have arrived and whose activations fit, each lane starts the
/// one that a rule prefers. Weight backwards fill idle time.
///
/// A forward must leave enough memory for the started micro-batches to complete on the lane one after the other,
/// earliest first (Dijkstra's banker). So no order runs out of memory.
class ListScheduler {
 public:
  explicit ListScheduler(const SynthesisProblem& problem) : problem_(problem), awaiting_(problem.stages.size()) {
    for (const auto& stage : problem.stages) {
      shares_lanes_ = shares_lanes_ || stage.lanes.size() > 1;
      for (const auto& link : stage.values) awaiting_[link.stage].forwards.push_back(stage.lanes.front());
      for (const auto& link : stage.gradients) awaiting_[link.stage].backwards.push_back(stage.lanes.front());
    }
  }

  /// @param limit  the run is aborted, with an infinite makespan, when its makespan reaches this
  [[nodiscard]] OrdersFound run(const SynthesisRule& rule, double limit = kForever) {
    reset(rule);
    limit_ = limit * (1 + 1e-9);  // tolerance for sums in another order
    while (found_.makespan < kForever) {
      std::size_t next = 0;
      for (std::size_t l = 0; l < lanes_.size(); ++l) {
        Lane& lane = lanes_[l];
        if (std::exchange(lane.stale, false)) lane.choice = choose(l);
        if (lane.choice.start < lanes_[next].choice.start) next = l;
      }
      if (lanes_[next].choice.start == kForever) break;
      perform(lanes_[next].choice);
    }
    return std::move(found_);
  }

 private:
  struct Choice {
    ComputeAction compute;
    double start = kForever;
  };
  struct Lane {
    Choice choice;  // its next compute action
    bool stale = true;
    bool last_was_forward = false;
    double free_at = 0;
    double left = 0;  // seconds of work
  };
  struct Passed {  // micro-batches of a stage that have passed forward, (input) backward, whole backward
    int forward = 0, backward = 0, all = 0;
  };
  /// Lanes with a compute action that needs one of a stage.
  struct Awaiting {
    std::vector<std::size_t> forwards, backwards;
  };

  void reset(const SynthesisRule& rule) {
    rule_ = rule;
    found_ = {.orders = LaneOrders(problem_.lanes.size()), .makespan = 0};
    end_.assign(problem_.computes(), kForever);
    passed_.assign(problem_.stages.size(), {});
    lanes_.assign(problem_.lanes.size(), {});
    for (std::size_t l = 0; l < lanes_.size(); ++l) lanes_[l].left = problem_.microbatches * problem_.lanes[l].work;
    most_.clear();
    for (const double rounds : problem_.rounds_in_flight()) {
      const double most = std::max(1.0, std::ceil(rounds * rule.slack));
      most_.push_back(static_cast<int>(std::min<double>(problem_.microbatches, most)));
    }
  }

  [[nodiscard]] Choice choose(std::size_t l) {
    candidates_.clear();
    for (const std::size_t s : problem_.lanes[l].stages) {
      const auto& stage = problem_.stages[s];
      const Passed& passed = passed_[s];
      double free = 0;
      for (const std::size_t lane : stage.lanes) free = std::max(free, lanes_[lane].free_at);
      const auto offer = [&](ActionKind kind, int microbatch) {
        const ComputeAction compute{kind, microbatch, StageId::of(s)};
        const double ready = problem_.ready(compute, end_);
        if (ready < kForever) candidates_.push_back({compute, std::max(free, ready)});
      };
      if (passed.forward < std::min(problem_.microbatches, passed.all + most_[s]) && fits(s))
        offer(ActionKind::kForward, passed.forward);
      if (passed.backward < passed.forward) offer(stage.first_backward(), passed.backward);
      if (stage.split && passed.all < passed.backward) offer(ActionKind::kBackwardWeight, passed.all);
    }
    return best(l);
  }

  /// The preferred compute action among the actions that could start first. If a better one starts soon, the lane waits
  /// for it.
  [[nodiscard]] Choice best(std::size_t l) const {
    double now = kForever;
    for (const Choice& candidate : candidates_) now = std::min(now, candidate.start);
    Choice chosen;
    for (const Choice& candidate : candidates_) {
      if (candidate.start > now) continue;
      if (chosen.start == kForever || preferred(l, candidate.compute, chosen.compute)) chosen = candidate;
    }
    if (rule_.patience <= 0 || chosen.compute.kind != ActionKind::kBackwardWeight) return chosen;
    const double until = now + rule_.patience * problem_.stage_of(chosen.compute).weight;
    Choice awaited;
    for (const Choice& candidate : candidates_) {
      if (candidate.compute.kind == ActionKind::kBackwardWeight || candidate.start >= until) continue;
      if (candidate.start < awaited.start) awaited = candidate;
    }
    return awaited.start < kForever ? awaited : chosen;
  }

  [[nodiscard]] bool preferred(std::size_t l, ComputeAction a, ComputeAction b) const {
    if (rule_.urgency != nullptr) {
      const double x = (*rule_.urgency)[problem_.index(a)], y = (*rule_.urgency)[problem_.index(b)];
      if (x != y) return x > y;
    }
    return key(l, a) < key(l, b);
  }

  /// What the rule sorts by: smaller first.
  [[nodiscard]] std::tuple<int, int, int> key(std::size_t l, ComputeAction compute) const {
    using Kinds = SynthesisRule::Kinds;
    const bool forward = compute.kind == ActionKind::kForward;
    bool later = forward;
    if (rule_.kinds == Kinds::kForwardFirst) later = !forward;
    if (rule_.kinds == Kinds::kAlternate) later = forward == lanes_[l].last_was_forward;
    int first = later ? 1 : 0;
    if (compute.kind == ActionKind::kBackwardWeight) first = rule_.kinds == Kinds::kWeightFirst ? -1 : 2;
    const int way = forward ? -compute.stage.value() : compute.stage.value();  // furthest first
    if (rule_.chunks == SynthesisRule::Chunks::kFurthest) return {first, way, compute.microbatch};
    if (rule_.chunks == SynthesisRule::Chunks::kNearest) return {first, -way, compute.microbatch};
    return {first, compute.microbatch, way};
  }

  /// Whether the lanes of a stage have memory for its next forward.
  [[nodiscard]] bool fits(std::size_t s) const {
    return std::ranges::all_of(problem_.stages[s].lanes, [&](std::size_t l) { return fits(s, problem_.lanes[l]); });
  }
  [[nodiscard]] bool fits(std::size_t s, const SynthesisProblem::Lane& lane) const {
    if (lane.limit == kForever) return true;
    int earliest = problem_.microbatches, latest = passed_[s].forward;
    for (const std::size_t t : lane.stages) {
      earliest = std::min(earliest, passed_[t].all);
      latest = std::max(latest, passed_[t].forward - 1);
    }
    double own = 0;  // of this micro-batch and later ones
    for (int m = latest; m >= earliest; --m) {
      double need = 0;  // what this micro-batch still needs
      for (const std::size_t t : lane.stages) {
        const int forward = passed_[t].forward + (t == s ? 1 : 0);
        if (m >= forward)
          need += problem_.stages[t].held;
        else if (m >= passed_[t].all)
          own += problem_.stages[t].held;
      }
      if (own + need > lane.limit) return false;
    }
    return true;
  }

  void perform(const Choice choice) {
    const ComputeAction compute = choice.compute;
    const auto& stage = problem_.stage_of(compute);
    const double end = choice.start + stage.seconds(compute.kind);
    end_[problem_.index(compute)] = end;
    found_.makespan = std::max(found_.makespan, end);
    const bool forward = compute.kind == ActionKind::kForward, weight = compute.kind == ActionKind::kBackwardWeight;
    Passed& passed = passed_[compute.stage.index()];
    if (forward) ++passed.forward;
    if (gives_input_gradients(compute.kind)) ++passed.backward;
    if (gives_weight_gradients(compute.kind)) ++passed.all;
    for (const std::size_t l : stage.lanes) {
      Lane& lane = lanes_[l];
      found_.orders[l].push_back(compute);
      lane.free_at = end;
      lane.left -= end - choice.start;
      if (end + lane.left >= limit_) found_.makespan = kForever;
      if (!weight) lane.last_was_forward = forward;
      lane.stale = true;
    }
    const Awaiting& awaiting = awaiting_[compute.stage.index()];
    if (shares_lanes_) {
      for (Lane& lane : lanes_) lane.stale = true;
    } else if (!weight) {
      for (const std::size_t l : forward ? awaiting.forwards : awaiting.backwards) lanes_[l].stale = true;
    }
  }

  const SynthesisProblem& problem_;
  bool shares_lanes_ = false;       // some stage has several lanes, so a compute action may delay several lanes
  std::vector<Awaiting> awaiting_;  // by stage
  SynthesisRule rule_;
  double limit_ = kForever;
  OrdersFound found_;
  std::vector<double> end_;     // by SynthesisProblem::index
  std::vector<Passed> passed_;  // by stage
  std::vector<int> most_;       // micro-batches in flight, by stage
  std::vector<Lane> lanes_;
  std::vector<Choice> candidates_;
};

}  // namespace autopar::detail
