#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/schedule/synthesis/problem.hpp>

namespace autopar::detail {

/// Simulates fixed orders of lanes and finds what delays the last compute action.
class OrderedTimeline {
 public:
  explicit OrderedTimeline(const SynthesisProblem& problem) : problem_(problem) {}

  /// Starts every compute action as early as its lane and its data allow.
  /// @return false if the orders wait for each other
  bool play(const LaneOrders& orders) {
    orders_ = &orders;
    at_.assign(orders.size(), 0);
    free_at_.assign(orders.size(), 0);
    start_.assign(problem_.computes(), kForever);
    end_.assign(problem_.computes(), kForever);
    played_.clear();
    makespan_ = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t l = 0; l < orders.size(); ++l) {
        while (at_[l] < orders[l].size() && perform(orders[l][at_[l]])) moved = true;
      }
    }
    return std::ranges::equal(at_, orders, {}, {}, &std::vector<ComputeAction>::size);
  }
  [[nodiscard]] double makespan() const { return makespan_; }

  /// Seconds from the start of each compute action to the end of all that depends on it, given the orders.
  /// @pre play returned true
  [[nodiscard]] std::vector<double> tails() const {
    std::vector<double> tail(problem_.computes(), 0);  // after the end, until the compute action itself is visited
    std::vector<double> behind(orders_->size(), 0);    // on each lane
    for (auto compute = played_.rbegin(); compute != played_.rend(); ++compute) {
      const auto& stage = problem_.stage_of(*compute);
      double& mine = tail[problem_.index(*compute)];
      for (const std::size_t l : stage.lanes) mine = std::max(mine, behind[l]);
      mine += stage.seconds(compute->kind);
      for (const std::size_t l : stage.lanes) behind[l] = mine;
      problem_.for_each_input(*compute, [&](ComputeAction input, double delay) {
        double& before = tail[problem_.index(input)];
        before = std::max(before, mine + delay);
      });
    }
    return tail;
  }

  /// Positions [lane, position] on a critical path of compute actions that wait for their lane, the latest first.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> held_up() const {
    std::vector<std::pair<std::size_t, std::size_t>> out;
    std::vector<std::size_t> looked_at;  // by lane: the path leads to ever earlier positions
    for (const auto& order : *orders_) looked_at.push_back(order.size());
    ComputeAction compute =
        *std::ranges::max_element(played_, {}, [&](ComputeAction played) { return end_[problem_.index(played)]; });
    for (bool found = true; found;) {
      const double start = start_[problem_.index(compute)];
      const auto delays = [&](ComputeAction other, double delay) {
        return end_[problem_.index(other)] + delay >= start - kSame * makespan_;
      };
      if (start <= kSame * makespan_) return out;
      found = false;
      ComputeAction before;
      problem_.for_each_input(compute, [&](ComputeAction input, double delay) {
        if (found || !delays(input, delay)) return;
        found = true;
        before = input;
      });
      const auto& lanes = problem_.stage_of(compute).lanes;
      for (std::size_t i = 0; i < lanes.size() && !found; ++i) {
        const auto& order = (*orders_)[lanes[i]];
        std::size_t& at = looked_at[lanes[i]];
        do {  // inputs are identified by index, since a backward may be whole
          --at;
        } while (problem_.index(order[at]) != problem_.index(compute));
        if (at == 0 || !delays(order[at - 1], 0)) continue;
        found = true;
        before = order[at - 1];
        out.emplace_back(lanes[i], at);
      }
      compute = before;
    }
    return out;
  }

 private:
  static constexpr double kSame = 1e-12;

  bool perform(ComputeAction compute) {
    const auto& stage = problem_.stage_of(compute);
    double start = 0;
    for (const std::size_t l : stage.lanes) {
      if (at_[l] == (*orders_)[l].size() || (*orders_)[l][at_[l]] != compute) return false;
      start = std::max(start, free_at_[l]);
    }
    start = std::max(start, problem_.ready(compute, end_));
    if (start == kForever) return false;
    const double end = start + stage.seconds(compute.kind);
    start_[problem_.index(compute)] = start;
    end_[problem_.index(compute)] = end;
    makespan_ = std::max(makespan_, end);
    for (const std::size_t l : stage.lanes) {
      free_at_[l] = end;
      ++at_[l];
    }
    played_.push_back(compute);
    return true;
  }

  const SynthesisProblem& problem_;
  const LaneOrders* orders_ = nullptr;
  std::vector<std::size_t> at_;
  std::vector<double> free_at_, start_, end_;  // by lane; by SynthesisProblem::index
  std::vector<ComputeAction> played_;
  double makespan_ = kForever;
};

/// Shortens orders by local moves. If a compute action delays the last one because its lane is busy with another, it is
/// moved some positions ahead. Or the action before it is moved some positions back. The first move that helps is
/// taken.
class OrderSearch {
 public:
  explicit OrderSearch(const SynthesisProblem& problem) : problem_(problem), timeline_(problem) {}

  /// @param budget  number of orders to simulate; reduced by those simulated
  void improve(OrdersFound& found, std::int64_t& budget) {
    bool improved = timeline_.play(found.orders);
    found.makespan = improved ? timeline_.makespan() : kForever;
    while (improved && budget > 0) {
      (void)timeline_.play(found.orders);
      improved = std::ranges::any_of(timeline_.held_up(), [&](const auto& held_up) {
        return improve_at(found, held_up.first, held_up.second, budget);
      });
    }
  }

 private:
  static constexpr std::size_t kReach = 4;  // positions

  bool improve_at(OrdersFound& found, std::size_t lane, std::size_t at, std::int64_t& budget) {
    for (std::size_t places = 1; places <= kReach; ++places) {
      if (places <= at && helps(found, lane, at, at - places, budget)) return true;
      const std::size_t behind = at - 1 + places;
      if (places > 1 && behind < found.orders[lane].size() && helps(found, lane, at - 1, behind, budget)) return true;
    }
    return false;
  }

  /// Moves a compute action; moves it back unless the makespan became shorter.
  bool helps(OrdersFound& found, std::size_t lane, std::size_t from, std::size_t to, std::int64_t& budget) {
    auto& order = found.orders[lane];
    move(order, from, to);
    if (budget > 0 && problem_.fits(order, problem_.lanes[lane])) {
      --budget;
      if (timeline_.play(found.orders) && timeline_.makespan() < found.makespan * (1 - 1e-9)) {
        found.makespan = timeline_.makespan();
        return true;
      }
    }
    move(order, to, from);
    return false;
  }

  static void move(std::vector<ComputeAction>& order, std::size_t from, std::size_t to) {
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
