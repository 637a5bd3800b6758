#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/plan/verify/stated_plan.hpp>
#include <autopar/schedule/action.hpp>

#include "oracle/batch.hpp"
#include "oracle/order.hpp"

namespace autopar::oracle {

/// Predicted seconds of each rank in one phase of a step.
struct PhaseTimes {
  double end = 0;                                               ///< of all ranks
  std::vector<double> ends, computing, communicating, summing;  ///< by rank
};

/// Simulates an order in time. A rank runs its compute actions one after the other. A message is transferred beside
/// them once both its ends are issued, one at a time out of a rank and into it. Its compute action waits for it.
/// Receives are issued `kReceivesAhead` compute actions early. Buckets are summed as they fill during the last backward
/// of their stage.
template <class Costs>
class TimelinePlayer {
 public:
  /// @param costs  see `verify::StatedCosts`
  TimelinePlayer(const verify::StatedPlan& stated, Order& order, const Costs& costs)
      : stated_(stated),
        batch_(stated.plan),
        order_(order),
        costs_(costs),
        ranks_(order.computes.size()),
        issued_(order.messages.size(), false) {
    for (auto* list : {&timeline_.ends, &timeline_.computing, &timeline_.communicating, &timeline_.summing})
      list->assign(ranks_.size(), 0);
    ready_at_.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) ready_at_[r].assign(order.computes[r].size(), 0);
  }

  [[nodiscard]] PhaseTimes play(bool sums) && {
    for (std::size_t r = 0; r < ranks_.size(); ++r) agenda_.insert({0, r});
    while (!agenda_.empty()) {
      const auto [now, rank] = *agenda_.begin();
      agenda_.erase(agenda_.begin());
      arrive(rank, now);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next + 1 < order_.computes[r].size())
        throw InvalidArgument("oracle: the plan never comes to its end");
    }
    if (sums) play_sums();
    for (const double end : timeline_.ends) timeline_.end = std::max(timeline_.end, end);
    return std::move(timeline_);
  }

 private:
  struct LastCompute {
    double begin = 0, end = 0;
  };
  struct State {
    std::size_t next = 0, posted = 0;
    bool waiting = false;
    double since = 0, out_free = 0, in_free = 0;
    double computing_to = 0, behind = 0;  // seconds that messages of the current action take from the next
    std::map<int, LastCompute> last{};    // of each stage

    /// When the rank has a part of the gradients of `stage`, which come evenly during its last backward. With stage -1:
    /// when it has all gradients of its stages.
    [[nodiscard]] double filled_at(int stage, double part) const {
      double at = 0;
      for (const auto& [own, compute] : last) {
        if (stage >= 0 && own != stage) continue;
        at = std::max(at, compute.begin + (stage >= 0 ? part : 1) * (compute.end - compute.begin));
      }
      return at;
    }
  };

  void arrive(std::size_t rank, double now) {
    State& state = ranks_[rank];
    const auto& computes = order_.computes[rank];
    while (state.posted < computes.size() && state.posted <= state.next + kReceivesAhead) {
      for (const std::size_t id : computes[state.posted].receives) issue(id, now);
      ++state.posted;
    }
    for (const std::size_t id : computes[state.next].sends) issue(id, now);
    state.waiting = true;
    state.since = now;
    try_compute(rank);
  }

  void issue(std::size_t id, double now) {
    if (!issued_[id]) {
      issued_[id] = true;
      return;
    }
    const OrderedMessage& message = order_.messages[id];
    double start = now, end = now;
    if (message.from != message.to) {
      State &sender = ranks_[message.from], &receiver = ranks_[message.to];
      start = std::max({now, sender.out_free, receiver.in_free});
      end = start + costs_.transfer(message.bytes, Rank::of(message.from), Rank::of(message.to)).value();
      sender.out_free = receiver.in_free = end;
      for (const std::size_t rank : {message.from, message.to}) {
        if (ranks_[rank].computing_to > start)
          ranks_[rank].behind += costs_.message_delay() * (std::min(ranks_[rank].computing_to, end) - start);
      }
    }
    for (const std::size_t rank : {message.from, message.to}) {
      timeline_.ends[rank] = std::max(timeline_.ends[rank], end);
      timeline_.communicating[rank] += end - start;
    }
    if (message.awaited_by < 0) return;
    const auto compute = static_cast<std::size_t>(message.awaited_by);
    --order_.computes[message.to][compute].missing;
    ready_at_[message.to][compute] = std::max(ready_at_[message.to][compute], end);
    try_compute(message.to);
  }

  /// Whether a rank has reached a compute action and has what it needs.
  [[nodiscard]] bool can_compute(std::size_t rank) const {
    const State& state = ranks_[rank];
    const auto& computes = order_.computes[rank];
    return state.waiting && computes[state.next].missing == 0 && state.next + 1 < computes.size();
  }

  /// Starts a rank's compute action if it can start; shards that exchange values start together.
  void try_compute(std::size_t rank) {
    if (!can_compute(rank)) return;
    const OrderedAction& compute = order_.computes[rank][ranks_[rank].next];
    std::vector<std::size_t> together{rank};
    if (batch_.shards(compute.stage) > 1 && compute.has_messages()) {
      for (const auto& [ranks, samples] : batch_.holders(compute.stage, compute.microbatch)) {
        if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) together = ranks;
      }
    }
    double begin = 0;
    for (const std::size_t other : together) {
      if (!can_compute(other)) return;
      const OrderedAction& same = order_.computes[other][ranks_[other].next];
      if (same.stage != compute.stage || same.kind != compute.kind || same.microbatch != compute.microbatch) return;
      begin = std::max({begin, ranks_[other].since, ready_at_[other][ranks_[other].next]});
    }
    for (const std::size_t other : together) run_compute(other, begin);
  }

  void run_compute(std::size_t rank, double begin) {
    State& state = ranks_[rank];
    const OrderedAction& compute = order_.computes[rank][state.next];
    const double alone = seconds_of(compute) + delay_by_sums(rank);
    double with_messages = 0;
    if (state.out_free > begin) with_messages += std::min(alone, state.out_free - begin);
    if (state.in_free > begin) with_messages += std::min(alone, state.in_free - begin);
    const double takes = alone + costs_.message_delay() * with_messages + state.behind, end = begin + takes;
    state.behind = 0;
    state.computing_to = end;
    state.waiting = false;
    state.last[compute.stage] = {begin, end};
    timeline_.computing[rank] += takes;
    timeline_.ends[rank] = std::max(timeline_.ends[rank], end);
    ++state.next;
    agenda_.insert({end, rank});
  }

  [[nodiscard]] double seconds_of(const OrderedAction& compute) const {
    const NodeCost& cost = costs_.of_stage(static_cast<std::size_t>(compute.stage), compute.samples);
    switch (compute.kind) {
      case ActionKind::kForward:
        return cost.forward.value();
      case ActionKind::kBackwardInput:
        return (cost.backward - cost.backward_weight).value();
      case ActionKind::kBackwardWeight:
        return cost.backward_weight.value();
      default:
        return cost.backward.value();
    }
  }

  /// Seconds by which gradient sums delay the compute action that a rank starts. In each second that a sum takes alone,
  /// the computation loses a part of it; but no sum runs before the first bucket is full.
  [[nodiscard]] double delay_by_sums(std::size_t rank) const {
    const auto& computes = order_.computes[rank];
    const OrderedAction& compute = computes[ranks_[rank].next];
    const auto fills = [&](const OrderedAction& action) {
      return action.stage == compute.stage && gives_weight_gradients(action.kind);
    };
    if (!fills(compute)) return 0;
    for (std::size_t i = ranks_[rank].next + 1; i + 1 < computes.size(); ++i) {
      if (fills(computes[i])) return 0;
    }
    const auto& groups = stated_.pipeline.groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].stage.value() != compute.stage) continue;
      const auto both = costs_.contention(static_cast<std::size_t>(compute.stage));
      if (both == kOneAfterTheOther) return 0;  // on CPUs, where other threads sum
      double sums = 0;
      for (std::size_t b = 0; b + 1 < stated_.buckets[g].size(); ++b)
        sums += costs_.sum(groups[g], stated_.buckets[g][b]).value();
      const double open = seconds_of(compute) * (1 - 1.0 / static_cast<double>(stated_.buckets[g].size()));
      const double a = both.computing_rate();
      return a > 0 ? std::min(both.of_computing * sums, open * (1 - a) / a) : both.of_computing * sums;
    }
    return 0;
  }

  /// Of a sum that takes `alone` alone and begins while members compute until `end`.
  [[nodiscard]] double delayed_sum(const ReduceGroup& group, double begin, double alone) const {
    double end = begin;
    for (const Rank rank : group.ranks) {
      for (const auto& [stage, compute] : ranks_[rank.index()].last) {
        if (stage == group.stage.value()) end = std::max(end, compute.end);
      }
    }
    if (end <= begin || alone == 0) return alone;
    const auto both = costs_.contention(group.stage.index());
    const double b = both == kOneAfterTheOther ? 1 : both.exchange_rate();
    const double done = b * (end - begin);  // of the sum, until the computation ends
    return done >= alone ? alone / b : end - begin + alone - done;
  }

  void play_sums() {
    std::vector<double> free_at(ranks_.size(), 0);
    for (std::size_t g = 0; g < stated_.buckets.size(); ++g) {
      const ReduceGroup& group = stated_.pipeline.groups[g];
      const auto& buckets = stated_.buckets[g];
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        double start = 0;
        for (const Rank rank : group.ranks) {
          const double part = (static_cast<double>(b) + 1) / static_cast<double>(buckets.size());
          const double full = ranks_[rank.index()].filled_at(group.stage.value(), part);
          start = std::max({start, full, free_at[rank.index()]});
        }
        double takes = costs_.sum(group, buckets[b]).value();
        if (group.stage.valid()) takes = delayed_sum(group, start, takes);
        for (const Rank rank : group.ranks) {
          free_at[rank.index()] = start + takes;
          timeline_.summing[rank.index()] += takes;
          timeline_.ends[rank.index()] = std::max(timeline_.ends[rank.index()], free_at[rank.index()]);
        }
      }
    }
  }

  const verify::StatedPlan& stated_;
  Batch batch_;
  Order& order_;
  const Costs& costs_;
  std::vector<State> ranks_;
  std::vector<bool> issued_;
  std::vector<std::vector<double>> ready_at_;
  std::set<std::pair<double, std::size_t>> agenda_;
  PhaseTimes timeline_;
};

}  // namespace autopar::oracle
