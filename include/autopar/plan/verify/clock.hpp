#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/cost/concepts.hpp>
#include <autopar/cost/contention.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar::verify {

/// Predicted seconds of a rank in a step without its updates.
struct RankTimes {
  double end = 0, computing = 0, communicating = 0, summing = 0;
};

/// Plays the programs of a step in time, one phase after the other. A rank runs its compute actions one after the
/// other. A message is transferred beside them once both its ends are issued, one at a time out of a rank and into it;
/// its compute action waits for it. Receives are issued `kReceivesAhead` compute actions early. Tensor shards that
/// exchange values start together. Buckets are summed as they fill during the last backward of their stage. As far as
/// costs say so, sums and messages delay the computation beside them, and it delays sums.
template <class Costs>
class Clock {
 public:
  /// @param costs  see `StatedCosts`
  Clock(const StatedPlan& stated, const Costs& costs)
      : stated_(stated), pipeline_(stated.pipeline), costs_(costs), times_(stated.stages_on.size()) {}

  /// @throws InvalidArgument if a program is unsound
  void play() {
    for (const Phase phase : stated_.phases()) {
      program_ = stated_.program(phase);
      const double begin = end();
      lanes_.assign(times_.size(), {});
      for (std::size_t r = 0; r < lanes_.size(); ++r) {
        const auto& actions = program_.ranks[r];
        for (std::size_t i = 0; i < actions.size(); ++i) {
          if (gives_weight_gradients(actions[i].kind)) lanes_[r].fills_buckets[actions[i].stage] = i;
        }
        times_[r].end = begin;
        agenda_.insert({begin, r});
      }
      while (!agenda_.empty()) {
        const auto [now, rank] = agenda_.extract(agenda_.begin()).value();
        advance(rank, now);
      }
      if (phase != Phase::kForward) sum_gradients();
    }
  }

  [[nodiscard]] const std::vector<RankTimes>& times() const { return times_; }
  /// Of all ranks.
  [[nodiscard]] double end() const { return std::ranges::max(times_, {}, &RankTimes::end).end; }

 private:
  using Read = std::tuple<StageId, Flow, int>;                           // stage, direction, micro-batch
  using Message = std::tuple<std::size_t, std::size_t, int, Flow, int>;  // from, to, channel, direction, micro-batch
  struct LastCompute {
    double begin = 0, end = 0;
  };
  struct Awaited {
    int missing = 0;
    double ready_at = 0;
  };
  struct Lane {
    std::size_t next = 0;    // position of the compute action that the rank has reached
    std::size_t posted = 0;  // position up to which receives are issued
    int ahead = 0;           // number of compute actions from `next` to `posted`
    bool waiting = false;
    double since = 0, out_free = 0, in_free = 0;
    double computes_until = 0, owed = 0;  // by messages that began within the latest compute action
    std::map<Read, Awaited> awaited{};
    std::map<StageId, LastCompute> last{};         // of each stage
    std::map<StageId, std::size_t> fills_buckets;  // position of each stage's last action that gives weight gradients
  };

  static Read read_by(const Action& action) { return {action.stage, action.flow, action.microbatch}; }

  /// Lets a rank go on to its next compute action, and issues the messages on the way.
  void advance(std::size_t rank, double now) {
    Lane& lane = lanes_[rank];
    const auto& actions = program_.ranks[rank];
    for (; lane.posted < actions.size() && lane.ahead <= kReceivesAhead; ++lane.posted) {
      const Action& action = actions[lane.posted];
      if (is_compute(action.kind)) ++lane.ahead;
      if (action.kind != ActionKind::kReceive) continue;
      ++lane.awaited[read_by(action)].missing;
      issue(action.peer.index(), rank, action, now);
    }
    for (; lane.next < actions.size() && !is_compute(actions[lane.next].kind); ++lane.next) {
      const Action& action = actions[lane.next];
      if (action.kind == ActionKind::kSend) issue(rank, action.peer.index(), action, now);
    }
    lane.waiting = lane.next < actions.size();
    lane.since = now;
    start_if_ready(rank);
  }

  /// Issues one end of a message. With both ends issued it is transferred when the ports are free.
  void issue(std::size_t from, std::size_t to, const Action& action, double now) {
    const Message message{from, to, action.channel, action.flow, action.microbatch};
    if (half_issued_.insert(message).second) return;
    half_issued_.erase(message);
    double arrival = now, takes = 0;
    if (from != to) {
      takes = costs_.message(action, Rank::of(from), Rank::of(to)).value();
      arrival = std::max({now, lanes_[from].out_free, lanes_[to].in_free}) + takes;
      lanes_[from].out_free = lanes_[to].in_free = arrival;
      for (const std::size_t rank : {from, to}) {
        const double shared = std::min(arrival, lanes_[rank].computes_until) - (arrival - takes);
        lanes_[rank].owed += costs_.message_delay() * std::max(0.0, shared);
      }
    }
    for (const std::size_t rank : {from, to}) occupy(rank, &RankTimes::communicating, takes, arrival);
    const Channel& channel = pipeline_.channels[static_cast<std::size_t>(action.channel)];
    Awaited& awaited = lanes_[to].awaited[{reader_of(channel, action.flow), action.flow, action.microbatch}];
    --awaited.missing;
    awaited.ready_at = std::max(awaited.ready_at, arrival);
    start_if_ready(to);
  }

  void occupy(std::size_t rank, double RankTimes::*with, double seconds, double end) {
    times_[rank].*with += seconds;
    times_[rank].end = std::max(times_[rank].end, end);
  }

  /// The compute action that a rank has reached if it has what it needs, else null.
  [[nodiscard]] const Action* ready(std::size_t rank) {
    const Action* compute = lanes_[rank].waiting ? &program_.ranks[rank][lanes_[rank].next] : nullptr;
    return compute != nullptr && lanes_[rank].awaited[read_by(*compute)].missing == 0 ? compute : nullptr;
  }

  void start_if_ready(std::size_t rank) {
    const Action* compute = ready(rank);
    if (compute == nullptr) return;
    std::vector<Rank> together{Rank::of(rank)};
    if (const Mesh& mesh = pipeline_.stages[compute->stage.index()]; exchanges_in_compute(mesh, compute->kind)) {
      const auto shards = mesh.tensor_group(*mesh.replica_of(Rank::of(rank)));
      together.assign(shards.begin(), shards.end());
    }
    double begin = 0;
    for (const Rank other : together) {
      const Action* same = ready(other.index());
      if (same == nullptr || !(*same == *compute)) return;
      const Lane& lane = lanes_[other.index()];
      begin = std::max({begin, lane.since, lane.awaited.at(read_by(*same)).ready_at});
    }
    const double alone = is_last(*compute, rank) ? beside_sums(*compute) : seconds_of(*compute);
    for (const Rank other : together) {
      Lane& lane = lanes_[other.index()];
      const double takes = alone + beside_messages(lane, begin, alone), end = begin + takes;
      lane.computes_until = end;
      lane.waiting = false;
      lane.last[compute->stage] = {begin, end};
      ++lane.next;
      --lane.ahead;
      occupy(other.index(), &RankTimes::computing, takes, end);
      agenda_.insert({end, other.index()});
    }
  }

  [[nodiscard]] double seconds_of(const Action& compute) const {
    const NodeCost& cost = costs_.of_stage(compute.stage.index(), compute.samples.size());
    if (compute.kind == ActionKind::kForward) return cost.forward.value();
    if (compute.kind == ActionKind::kBackwardInput) return (cost.backward - cost.backward_weight).value();
    return (compute.kind == ActionKind::kBackwardWeight ? cost.backward_weight : cost.backward).value();
  }

  /// By how much messages delay a compute action that begins: those under way, and those that began in the last one.
  double beside_messages(Lane& lane, double begin, double alone) {
    double shared = 0;
    for (const double busy_until : {lane.out_free, lane.in_free})
      shared += std::min(std::max(busy_until - begin, 0.0), alone);
    return costs_.message_delay() * shared + std::exchange(lane.owed, 0.0);
  }

  /// Whether a rank's buckets of the stage are full after this action.
  [[nodiscard]] bool is_last(const Action& compute, std::size_t rank) const {
    const auto last = lanes_[rank].fills_buckets.find(compute.stage);
    return last != lanes_[rank].fills_buckets.end() && last->second == lanes_[rank].next;
  }

  /// Seconds of a stage's last backward. From the first full bucket on, sums run beside it; only the last sum follows.
  /// It cannot be delayed for longer than it runs.
  [[nodiscard]] double beside_sums(const Action& compute) const {
    const double alone = seconds_of(compute);
    const Contention both = with_last_sums(costs_.contention(compute.stage.index()));
    if (both == kNoContention) return alone;
    const auto of_stage = [&](const ReduceGroup& group) { return group.stage == compute.stage; };
    const auto group = std::ranges::find_if(pipeline_.groups, of_stage);
    if (group == pipeline_.groups.end()) return alone;
    const auto& buckets = stated_.buckets[static_cast<std::size_t>(group - pipeline_.groups.begin())];
    double sums = 0;
    for (std::size_t b = 0; b + 1 < buckets.size(); ++b) sums += costs_.sum(*group, buckets[b]).value();
    const double delay = both.of_computing * sums, speed = both.computing_rate();
    const double shared = alone * (1 - 1 / static_cast<double>(buckets.size()));
    return alone + (speed > 0 ? std::min(delay, shared / speed - shared) : delay);
  }

  /// Seconds of a sum that begins while some members still compute.
  [[nodiscard]] double beside_compute(const ReduceGroup& group, double begin, double alone) const {
    LastCompute latest;
    for (const Rank rank : group.ranks) {
      const auto last = lanes_[rank.index()].last.find(group.stage);
      if (last != lanes_[rank.index()].last.end() && last->second.end > latest.end) latest = last->second;
    }
    if (!(latest.end > begin) || alone == 0) return alone;
    const double speed = with_last_sums(costs_.contention(group.stage.index())).exchange_rate();
    const double outlasts = alone + (latest.end - begin) * (1 - speed);
    return speed > 0 ? std::min(alone / speed, outlasts) : outlasts;
  }

  /// Gradients of a stage come evenly during its last backward; those of tied parameters are there when the rank's last
  /// compute action is over.
  void sum_gradients() {
    std::vector<double> free_at(lanes_.size(), 0);
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      const auto count = static_cast<double>(stated_.buckets[g].size());
      for (std::size_t b = 0; b < stated_.buckets[g].size(); ++b) {
        const double part = group.stage.valid() ? static_cast<double>(b + 1) / count : 1;
        double begin = 0;
        for (const Rank rank : group.ranks) {
          begin = std::max(begin, free_at[rank.index()]);
          for (const auto& [stage, last] : lanes_[rank.index()].last) {
            if (group.stage.valid() && stage != group.stage) continue;
            begin = std::max(begin, last.begin + part * (last.end - last.begin));
          }
        }
        const double alone = costs_.sum(group, stated_.buckets[g][b]).value();
        const double takes = group.stage.valid() ? beside_compute(group, begin, alone) : alone, end = begin + takes;
        for (const Rank rank : group.ranks) {
          free_at[rank.index()] = end;
          occupy(rank.index(), &RankTimes::summing, takes, end);
        }
      }
    }
  }

  const StatedPlan& stated_;
  const Pipeline& pipeline_;
  const Costs& costs_;
  Program program_;  // of the phase that is played
  std::vector<Lane> lanes_;
  std::set<Message> half_issued_;
  std::set<std::pair<double, std::size_t>> agenda_;  // time, rank
  std::vector<RankTimes> times_;
};

}  // namespace autopar::verify
