#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/schedule/synthesis/list_scheduling.hpp>
#include <autopar/schedule/synthesis/problem.hpp>

namespace autopar::detail {

/// Simulates fixed orders of lanes and finds what delays the last compute action.
class OrderedTimeline {
 public:
  explicit OrderedTimeline(const SynthesisProblem& problem) : problem_(problem) {}

  /// Starts every compute action as early as its lane and its data allow.
  /// @return false if the orders wait for each other
  bool play(const std::vector<std::vector<SynthesisAction>>& orders) {
    orders_ = &orders;
    const std::size_t lanes = orders.size();
    at_.assign(lanes, 0);
    free_at_.assign(lanes, 0);
    start_.assign(problem_.computes(), kNever);
    end_.assign(problem_.computes(), kNever);
    played_.clear();
    makespan_ = 0;
    std::size_t all = 0;
    for (const auto& order : orders) all += order.size();
    std::size_t passed = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t l = 0; l < lanes; ++l) {
        while (at_[l] < orders[l].size() && perform(orders[l][at_[l]], passed)) moved = true;
      }
    }
    return passed == all;
  }
  [[nodiscard]] double makespan() const { return makespan_; }
  [[nodiscard]] double end(const SynthesisAction& compute) const { return end_[problem_.index(compute)]; }

  /// Seconds from the start of each compute action to the end of all that depends on it, given the orders.
  /// @pre play returned true
  [[nodiscard]] std::vector<double> tails() const {
    std::vector<double> tail(problem_.computes(), 0);  // after the end, until the compute action itself is visited
    std::vector<double> behind(orders_->size(), 0);    // on each lane
    for (auto compute = played_.rbegin(); compute != played_.rend(); ++compute) {
      const auto& stage = problem_.stages[compute->stage];
      double& mine = tail[problem_.index(*compute)];
      for (const std::size_t l : stage.lanes) mine = std::max(mine, behind[l]);
      mine += stage.seconds(compute->kind);
      for (const std::size_t l : stage.lanes) behind[l] = mine;
      for_each_input(*compute, [&](const SynthesisAction& input, double delay) {
        double& before = tail[problem_.index(input)];
        before = std::max(before, mine + delay);
      });
    }
    return tail;
  }

  /// Positions [lane, position] on a critical path of compute actions that wait for their lane, the latest first.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> held_up() const {
    std::vector<std::pair<std::size_t, std::size_t>> out;
    SynthesisAction compute;
    double latest = -1;
    for (const SynthesisAction& played : played_) {
      if (end(played) > latest) {
        latest = end(played);
        compute = played;
      }
    }
    std::vector<std::size_t> looked_at;  // by lane: the path leads to ever earlier positions
    for (const auto& order : *orders_) looked_at.push_back(order.size());
    for (;;) {
      const auto& stage = problem_.stages[compute.stage];
      const double start = start_[problem_.index(compute)];
      if (start <= kSame * makespan_) return out;
      bool found = false;
      SynthesisAction before;
      for_each_input(compute, [&](const SynthesisAction& input, double delay) {
        if (end(input) + delay < start - kSame * makespan_ || found) return;
        found = true;
        before = input;
      });
      if (!found) {
        for (const std::size_t l : stage.lanes) {
          const auto& order = (*orders_)[l];
          std::size_t& at = looked_at[l];  // inputs are identified by slot, since a backward may be whole
          do {
            --at;
          } while (problem_.index(order[at]) != problem_.index(compute));
          if (at == 0 || end(order[at - 1]) < start - kSame * makespan_) continue;
          out.emplace_back(l, at);
          before = order[at - 1];
          found = true;
          break;
        }
      }
      if (!found) return out;
      compute = before;
    }
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kSame = 1e-12;

  template <class Visit>
  void for_each_input(const SynthesisAction& compute, const Visit& visit) const {
    const auto& stage = problem_.stages[compute.stage];
    if (compute.kind == ActionKind::kBackwardWeight) {
      visit(SynthesisAction{compute.stage, ActionKind::kBackwardInput, compute.microbatch}, 0.0);
    } else if (compute.kind == ActionKind::kForward) {
      for (const auto& link : stage.values) {
        visit(SynthesisAction{link.stage, ActionKind::kForward, compute.microbatch}, link.delay);
      }
    } else {
      visit(SynthesisAction{compute.stage, ActionKind::kForward, compute.microbatch}, 0.0);
      for (const auto& link : stage.gradients) {
        visit(SynthesisAction{link.stage, problem_.stages[link.stage].first_backward(), compute.microbatch},
              link.delay);
      }
    }
  }

  bool perform(const SynthesisAction& compute, std::size_t& passed) {
    const auto& stage = problem_.stages[compute.stage];
    double start = 0;
    for (const std::size_t l : stage.lanes) {
      if (at_[l] == (*orders_)[l].size() || !((*orders_)[l][at_[l]] == compute)) return false;
      start = std::max(start, free_at_[l]);
    }
    for_each_input(compute, [&](const SynthesisAction& input, double delay) {
      start = std::max(start, end_[problem_.index(input)] + delay);
    });
    if (start == kNever) return false;
    const double end = start + stage.seconds(compute.kind);
    start_[problem_.index(compute)] = start;
    end_[problem_.index(compute)] = end;
    makespan_ = std::max(makespan_, end);
    for (const std::size_t l : stage.lanes) {
      free_at_[l] = end;
      ++at_[l];
      ++passed;
    }
    played_.push_back(compute);
    return true;
  }

  const SynthesisProblem& problem_;
  const std::vector<std::vector<SynthesisAction>>* orders_ = nullptr;
  std::vector<std::size_t> at_;
  std::vector<double> free_at_, start_, end_;  // by lane; by SynthesisProblem::index
  std::vector<SynthesisAction> played_;
  double makespan_ = kNever;
};

/// The largest amount that a lane holds at once in this order.
[[nodiscard]] inline double peak_held(const SynthesisProblem& problem, const std::vector<SynthesisAction>& order) {
  double held = 0, peak = 0;
  for (const SynthesisAction& compute : order) {
    if (compute.kind == ActionKind::kForward) held += problem.stages[compute.stage].held;
    peak = std::max(peak, held);
    if (gives_weight_gradients(compute.kind)) held -= problem.stages[compute.stage].held;
  }
  return peak;
}

/// Shortens orders by local moves. If a compute action delays the last one because its lane is busy with another, it is
/// moved some positions ahead. Or the action before it is moved some positions back. The first move that helps is
/// taken.
class OrderSearch {
 public:
  explicit OrderSearch(const SynthesisProblem& problem) : problem_(problem), timeline_(problem) {}

  /// @param budget  number of orders to simulate; reduced by those simulated
  /// @return the makespan
  double improve(std::vector<std::vector<SynthesisAction>>& orders, std::int64_t& budget) {
    if (!timeline_.play(orders)) return std::numeric_limits<double>::infinity();
    double best = timeline_.makespan();
    bool improved = true;
    while (improved && budget > 0) {
      improved = false;
      (void)timeline_.play(orders);
      for (const auto& [lane, at] : timeline_.held_up()) {
        improved = improve_at(orders, lane, at, best, budget);
        if (improved || budget <= 0) break;
      }
    }
    return best;
  }

 private:
  static constexpr std::size_t kReach = 4;  // positions

  bool improve_at(std::vector<std::vector<SynthesisAction>>& orders, std::size_t lane, std::size_t at, double& best,
                  std::int64_t& budget) {
    auto& order = orders[lane];
    for (std::size_t places = 1; places <= kReach; ++places) {
      if (places <= at && helps(orders, lane, at, at - places, best, budget)) return true;
      if (places > 1 && at - 1 + places < order.size() && helps(orders, lane, at - 1, at - 1 + places, best, budget)) {
        return true;
      }
    }
    return false;
  }

  /// Moves a compute action; moves it back unless the makespan became shorter.
  bool helps(std::vector<std::vector<SynthesisAction>>& orders, std::size_t lane, std::size_t from, std::size_t to,
             double& best, std::int64_t& budget) {
    auto& order = orders[lane];
    move(order, from, to);
    if (budget > 0 && peak_held(problem_, order) <= problem_.lanes[lane].limit) {
      --budget;
      if (timeline_.play(orders) && timeline_.makespan() < best * (1 - 1e-9)) {
        best = timeline_.makespan();
        return true;
      }
    }
    move(order, to, from);
    return false;
  }

  static void move(std::vector<SynthesisAction>& order, std::size_t from, std::size_t to) {
    const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
    if (from < to)
      std::rotate(at(from), at(from + 1), at(to + 1));
    else
      std::rotate(at(to), at(from), at(from + 1));
  }

  const SynthesisProblem& problem_;
  OrderedTimeline timeline_;
};

}  // namespace autopar::detail
