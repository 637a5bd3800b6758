#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/schedule/synthesis/problem.hpp>

namespace autopar::detail {

/// The orders of all lanes and their timeline.
struct SynthesisTimeline {
  std::vector<std::vector<SynthesisAction>> orders;  // [lane]
  std::vector<double> start, end;                    // by SynthesisProblem::index
  double makespan = std::numeric_limits<double>::infinity();
};

/// How list scheduling chooses among the compute actions that a lane could start.
struct SynthesisRule {
  enum class Kinds : std::uint8_t { kBackwardFirst, kForwardFirst, kAlternate, kWeightFirst };
  enum class Chunks : std::uint8_t { kFurthest, kNearest, kEarliest };  // in pipeline order; kEarliest: by micro-batch
  Kinds kinds = Kinds::kBackwardFirst;
  Chunks chunks = Chunks::kFurthest;
  /// A stage may have at most this times its `rounds_in_flight()` micro-batches in flight.
  double slack = std::numeric_limits<double>::infinity();
  double patience = 0;  // for something better, a lane waits up to this share of a weight backward
  const std::vector<double>* urgency = nullptr;  // by index; if given it decides, largest first
};

/// List scheduling: among the compute actions whose data have arrived and whose activations fit, each lane starts the
/// one that a rule prefers. Weight backwards fill idle time.
///
/// A forward must leave enough memory for the started micro-batches to complete on the lane one after the other,
/// earliest first (Dijkstra's banker). So no order runs out of memory.
class ListScheduler {
 public:
  explicit ListScheduler(const SynthesisProblem& problem) : problem_(problem) {
    waiting_.resize(problem.stages.size());
    work_.assign(problem.lanes.size(), 0);
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
      const auto& stage = problem.stages[s];
      shares_lanes_ = shares_lanes_ || stage.lanes.size() > 1;
      for (const auto& link : stage.values) waiting_[link.stage].forwards.push_back(stage.lanes.front());
      for (const auto& link : stage.gradients) waiting_[link.stage].backwards.push_back(stage.lanes.front());
      const double backward = stage.split ? stage.input + stage.weight : stage.backward;
      for (const std::size_t l : stage.lanes) work_[l] += problem.microbatches * (stage.forward + backward);
    }
  }

  /// @param limit  the run is aborted, with an infinite makespan, when its makespan reaches this
  [[nodiscard]] SynthesisTimeline run(const SynthesisRule& rule, double limit = kNever) {
    reset(rule);
    limit_ = limit * (1 + 1e-9);  // tolerance for sums in another order
    for (;;) {
      std::size_t next = choices_.size();
      for (std::size_t l = 0; l < choices_.size(); ++l) {
        if (stale_[l]) choices_[l] = choose(l);
        stale_[l] = false;
        if (choices_[l].start < (next == choices_.size() ? kNever : choices_[next].start)) next = l;
      }
      if (next == choices_.size()) break;
      perform(choices_[next]);
      if (timeline_.makespan == kNever) break;
    }
    return std::move(timeline_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  /// Lanes with a compute action that needs one of a stage.
  struct Waiting {
    std::vector<std::size_t> forwards, backwards;
  };
  struct Choice {
    SynthesisAction compute;
    double start = kNever;
  };
  struct Passed {  // micro-batches of a stage that have passed forward, (input) backward, whole backward
    int forward = 0, backward = 0, all = 0;
  };

  void reset(const SynthesisRule& rule) {
    rule_ = rule;
    const std::size_t lanes = problem_.lanes.size();
    timeline_ = {};
    timeline_.orders.resize(lanes);
    timeline_.start.assign(problem_.computes(), kNever);
    timeline_.end.assign(problem_.computes(), kNever);
    timeline_.makespan = 0;
    passed_.assign(problem_.stages.size(), {});
    free_at_.assign(lanes, 0);
    left_ = work_;
    last_was_forward_.assign(lanes, false);
    choices_.assign(lanes, {});
    stale_.assign(lanes, true);
    most_.clear();
    for (const double rounds : problem_.rounds_in_flight()) {
      const double most = std::max(1.0, std::ceil(rounds * rule.slack));
      most_.push_back(static_cast<int>(std::min<double>(problem_.microbatches, most)));
    }
  }

  [[nodiscard]] Choice choose(std::size_t l) const {
    candidates_.clear();
    double now = kNever;
    for (const std::size_t s : problem_.lanes[l].stages) {
      const auto& stage = problem_.stages[s];
      const Passed& passed = passed_[s];
      double free = 0;
      for (const std::size_t lane : stage.lanes) free = std::max(free, free_at_[lane]);
      const auto offer = [&](ActionKind kind, int microbatch, double ready) {
        if (ready == kNever) return;
        candidates_.push_back({{s, kind, microbatch}, std::max(free, ready)});
        now = std::min(now, candidates_.back().start);
      };
      if (passed.forward < std::min(problem_.microbatches, passed.all + most_[s]) && fits(s)) {
        offer(ActionKind::kForward, passed.forward, forward_ready(s, passed.forward));
      }
      if (passed.backward < passed.forward) {
        offer(stage.first_backward(), passed.backward, backward_ready(s, passed.backward));
      }
      if (stage.split && passed.all < passed.backward) offer(ActionKind::kBackwardWeight, passed.all, 0);
    }
    return best(l, now);
  }

  /// The preferred compute action among those that could start now. If a better one starts soon, the lane waits for it.
  [[nodiscard]] Choice best(std::size_t l, double now) const {
    Choice chosen;
    for (const Choice& candidate : candidates_) {
      if (candidate.start > now) continue;
      if (chosen.start == kNever || preferred(l, candidate.compute, chosen.compute)) chosen = candidate;
    }
    if (rule_.patience <= 0 || chosen.start == kNever || chosen.compute.kind != ActionKind::kBackwardWeight)
      return chosen;
    const double until = now + rule_.patience * problem_.stages[chosen.compute.stage].weight;
    Choice awaited;
    for (const Choice& candidate : candidates_) {
      if (candidate.compute.kind == ActionKind::kBackwardWeight || candidate.start >= until) continue;
      if (candidate.start < awaited.start) awaited = candidate;
    }
    return awaited.start < kNever ? awaited : chosen;
  }

  [[nodiscard]] bool preferred(std::size_t l, const SynthesisAction& a, const SynthesisAction& b) const {
    if (rule_.urgency != nullptr) {
      const double x = (*rule_.urgency)[problem_.index(a)], y = (*rule_.urgency)[problem_.index(b)];
      if (x != y) return x > y;
    }
    return key(l, a) < key(l, b);
  }

  [[nodiscard]] std::tuple<int, int, int> key(std::size_t l, const SynthesisAction& compute) const {
    const bool forward = compute.kind == ActionKind::kForward, weight = compute.kind == ActionKind::kBackwardWeight;
    int first = 0;  // sort key: smaller first
    switch (rule_.kinds) {
      case SynthesisRule::Kinds::kBackwardFirst:
        first = forward ? 1 : 0;
        break;
      case SynthesisRule::Kinds::kForwardFirst:
        first = forward ? 0 : 1;
        break;
      case SynthesisRule::Kinds::kAlternate:
        first = forward == last_was_forward_[l] ? 1 : 0;
        break;
      case SynthesisRule::Kinds::kWeightFirst:
        first = forward ? 1 : 0;
        break;
    }
    if (weight) first = rule_.kinds == SynthesisRule::Kinds::kWeightFirst ? -1 : 2;
    const int way = forward ? -static_cast<int>(compute.stage) : static_cast<int>(compute.stage);  // furthest first
    switch (rule_.chunks) {
      case SynthesisRule::Chunks::kFurthest:
        return {first, way, compute.microbatch};
      case SynthesisRule::Chunks::kNearest:
        return {first, -way, compute.microbatch};
      default:
        return {first, compute.microbatch, way};
    }
  }

  [[nodiscard]] double forward_ready(std::size_t s, int m) const {
    double ready = 0;
    for (const auto& link : problem_.stages[s].values) {
      ready = std::max(ready, timeline_.end[problem_.index(link.stage, ActionKind::kForward, m)] + link.delay);
    }
    return ready;
  }
  [[nodiscard]] double backward_ready(std::size_t s, int m) const {
    double ready = timeline_.end[problem_.index(s, ActionKind::kForward, m)];
    for (const auto& link : problem_.stages[s].gradients) {
      ready = std::max(ready, timeline_.end[problem_.index(link.stage, ActionKind::kBackward, m)] + link.delay);
    }
    return ready;
  }

  /// Whether the lanes of a stage have memory for its next forward.
  [[nodiscard]] bool fits(std::size_t s) const {
    const auto& lanes = problem_.stages[s].lanes;
    return std::all_of(lanes.begin(), lanes.end(), [&](std::size_t l) { return fits(s, l); });
  }
  [[nodiscard]] bool fits(std::size_t s, std::size_t l) const {
    const auto& lane = problem_.lanes[l];
    if (lane.limit == kNever) return true;
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

  void perform(const Choice& choice) {
    const SynthesisAction compute = choice.compute;
    const auto& stage = problem_.stages[compute.stage];
    const double end = choice.start + stage.seconds(compute.kind);
    timeline_.start[problem_.index(compute)] = choice.start;
    timeline_.end[problem_.index(compute)] = end;
    timeline_.makespan = std::max(timeline_.makespan, end);
    Passed& passed = passed_[compute.stage];
    if (compute.kind == ActionKind::kForward) ++passed.forward;
    if (gives_input_gradients(compute.kind)) ++passed.backward;
    if (gives_weight_gradients(compute.kind)) ++passed.all;
    for (const std::size_t l : stage.lanes) {
      timeline_.orders[l].push_back(compute);
      free_at_[l] = end;
      left_[l] -= end - choice.start;
      if (end + left_[l] >= limit_) timeline_.makespan = kNever;
      stale_[l] = true;
      if (compute.kind != ActionKind::kBackwardWeight)
        last_was_forward_[l] = compute.kind == ActionKind::kForward ? 1 : 0;
    }
    if (shares_lanes_)
      stale_.assign(stale_.size(), true);
    else if (compute.kind != ActionKind::kBackwardWeight)
      wake_neighbours(compute);
  }

  /// Wakes lanes that may have waited for the compute action.
  void wake_neighbours(const SynthesisAction& compute) {
    const Waiting& waiting = waiting_[compute.stage];
    for (const std::size_t l : compute.kind == ActionKind::kForward ? waiting.forwards : waiting.backwards)
      stale_[l] = true;
  }

  const SynthesisProblem& problem_;
  bool shares_lanes_ = false;     // some stage has several lanes, so a compute action may delay several lanes
  std::vector<Waiting> waiting_;  // by stage
  std::vector<double> work_;      // seconds, by lane
  SynthesisRule rule_;
  double limit_ = kNever;
  SynthesisTimeline timeline_;
  std::vector<Passed> passed_;          // by stage
  std::vector<double> free_at_, left_;  // of the work
  std::vector<int> most_;               // micro-batches in flight, by stage
  std::vector<char> last_was_forward_, stale_;
  std::vector<Choice> choices_;
  mutable std::vector<Choice> candidates_;
};

}  // namespace autopar::detail
