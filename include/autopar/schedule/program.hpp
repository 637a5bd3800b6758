#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/schedule/compute_checks.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// A compute action never gets what it needs, because the orders of stages or ranks wait for each other.
class CyclicOrders : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

namespace detail {

/// A set of numbers that seldom has more than two.
class Few {
 public:
  void push_back(int value) {
    if (size_ < few_.size()) {
      few_[size_] = value;
    } else {
      if (size_ == few_.size()) many_.assign(few_.begin(), few_.end());
      many_.push_back(value);
    }
    ++size_;
  }
  [[nodiscard]] const int* begin() const { return size_ <= few_.size() ? few_.data() : many_.data(); }
  [[nodiscard]] const int* end() const { return begin() + size_; }

 private:
  std::array<int, 2> few_{};
  std::size_t size_ = 0;
  std::vector<int> many_;
};

/// Simulates all units with nominal durations and writes one total order. A unit is one replica of one stage. A compute
/// action is written when it starts, and its messages right after it, at sender and receiver. A rank's program is its
/// part of the total order. Compute actions form lanes with a fixed order: one lane for each unit, or one for all units
/// of a rank. Lanes of one rank share its time.
class ProgramBuilder {
 public:
  ProgramBuilder(const Pipeline& pipeline, const BatchSplit& split, Phase phase)
      : pipeline_(pipeline), split_(split), phase_(phase) {
    program_.ranks.resize(static_cast<std::size_t>(pipeline.ranks));
    free_at_.resize(program_.ranks.size(), 0);
    units_of_rank_.resize(program_.ranks.size());
    emitted_.resize(pipeline.groups.size(), false);
    add_units();
    find_joint_computes();
  }

  /// Sets every unit to its stage's order. \@param computes  [stage]
  void add_stage_orders(const std::vector<std::vector<ComputeAction>>& computes) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      lanes_.push_back({units_[u].rank, {}});
      for (const ComputeAction compute : computes[units_[u].stage.index()]) add_compute(lanes_.size() - 1, u, compute);
    }
  }

  /// Sets all units of a rank to one order. \@param computes  [rank]
  void add_rank_orders(const std::vector<std::vector<ComputeAction>>& computes) {
    for (std::size_t r = 0; r < computes.size(); ++r) {
      lanes_.push_back({Rank::of(r), {}});
      for (const ComputeAction compute : computes[r]) {
        add_compute(lanes_.size() - 1, static_cast<std::size_t>(unit_of(compute.stage, Rank::of(r))), compute);
      }
    }
  }

  [[nodiscard]] Program build() && {
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (std::size_t c = 0; c < pipeline_.channels.size(); ++c) {
        add_messages(static_cast<int>(c), m, Flow::kValue);
        add_messages(static_cast<int>(c), m, Flow::kGradient);
      }
    }
    gather_for_call();
    for (std::size_t ahead = 0; ahead < kInputsAhead; ++ahead) {
      for (const Lane& lane : lanes_) emit_inputs(lane, ahead);
    }
    for (std::size_t l = 0; l < lanes_.size(); ++l) enqueue_if_ready(l);
    emit_reductions();
    while (!startable_.empty()) {
      const auto [start, l] = startable_.top();
      startable_.pop();
      if (lanes_[l].startable_at != start) continue;  // another compute action of the rank came first
      run_computes(first_of_rank(l, start), start);
    }
    for (const Lane& lane : lanes_) {
      if (lane.next < lane.computes.size()) refuse_cycle(lane.computes[lane.next]);
    }
    return std::move(program_);
  }

 private:
  // A stage's inputs leave their ranks two compute actions of its lane early, since a source that is computing sends
  // only afterwards.
  static constexpr std::size_t kInputsAhead = 2;

  struct Message {
    int channel;
    int microbatch;
    Flow flow;
    Route route;
    int reader;  // unit, -1 for source or sink
  };
  struct Slot {  // what a forward, or a backward that computes input gradients, reads and produces
    int missing = 0;
    std::int64_t ready_at = 0;
    Few inputs;   // messages from the source or the sink
    Few outputs;  // messages that this compute action produces
  };
  struct Unit {
    Rank rank;
    StageId stage;
    int replica;
    std::vector<Slot> slots;  // [2 * microbatch + (gradients ? 1 : 0)]
    std::size_t lane = 0;
    std::size_t computes_left = 0;
  };
  /// The groups that compute actions of a stage gather, in the order of use, and reduce. A part of a backward gathers
  /// each once.
  struct AroundComputes {
    std::vector<int> by_forward, by_backward, by_part, sums;

    [[nodiscard]] const std::vector<int>& gathered_by(ActionKind compute) const {
      if (compute == ActionKind::kForward) return by_forward;
      return compute == ActionKind::kBackward ? by_backward : by_part;
    }
  };
  struct LaneAction {
    std::size_t unit;
    ActionKind kind;
    int microbatch;
  };
  struct Lane {
    Rank rank;
    std::vector<LaneAction> computes;
    std::size_t next = 0;
    std::int64_t startable_at = kNotStartable;  // when the next compute action may start
  };
  static constexpr std::int64_t kNotStartable = -1;

  static Slot& slot(Unit& unit, int microbatch, Flow flow) {
    return unit.slots[2 * static_cast<std::size_t>(microbatch) + (flow == Flow::kGradient ? 1 : 0)];
  }
  static Flow flow_of(ActionKind kind) { return kind == ActionKind::kForward ? Flow::kValue : Flow::kGradient; }
  /// Nominal durations: a weight backward takes as long as an input backward.
  static std::int64_t duration(ActionKind kind) { return kind == ActionKind::kBackward ? 2 : 1; }

  void add_units() {
    units_of_stage_.resize(pipeline_.stages.size());
    for (std::size_t s = 0; s < pipeline_.stages.size(); ++s) {
      const Mesh& mesh = pipeline_.stages[s];
      for (std::size_t i = 0; i < mesh.ranks().size(); ++i) {
        units_of_stage_[s].push_back(units_.size());
        Unit unit{mesh.ranks()[i], StageId::of(s), static_cast<int>(i) / mesh.tensor(), {}};
        unit.slots.resize(2 * static_cast<std::size_t>(split_.microbatches()));
        units_of_rank_[unit.rank.index()].push_back(static_cast<int>(units_.size()));
        units_.push_back(std::move(unit));
      }
    }
  }

  /// The unit of a stage on a rank; -1 if there is none.
  [[nodiscard]] int unit_of(StageId stage, Rank rank) const {
    for (const int u : units_of_rank_[rank.index()]) {
      if (units_[static_cast<std::size_t>(u)].stage == stage) return u;
    }
    return -1;
  }

  void add_compute(std::size_t lane, std::size_t u, ComputeAction compute) {
    Unit& unit = units_[u];
    unit.lane = lane;
    const bool in_phase =
        phase_ == Phase::kStep || (phase_ == Phase::kForward) == (compute.kind == ActionKind::kForward);
    if (!in_phase || split_.slice(unit.stage, unit.replica, compute.microbatch).empty()) return;
    lanes_[lane].computes.push_back({u, compute.kind, compute.microbatch});
    ++unit.computes_left;
  }

  void add_messages(int c, int m, Flow flow) {
    const Channel& channel = pipeline_.channels[static_cast<std::size_t>(c)];
    if (!travels(channel, flow, phase_)) return;
    for (const Route& route : split_.routes(channel, m, flow)) {
      const int writer = unit_of(writer_of(channel, flow), route.from);
      const int reader = unit_of(reader_of(channel, flow), route.to);
      const int message = static_cast<int>(messages_.size());
      messages_.push_back({c, m, flow, route, reader});
      if (reader >= 0) ++slot(units_[static_cast<std::size_t>(reader)], m, flow).missing;
      if (writer >= 0) {
        slot(units_[static_cast<std::size_t>(writer)], m, flow).outputs.push_back(message);
      } else if (reader >= 0) {
        slot(units_[static_cast<std::size_t>(reader)], m, flow).inputs.push_back(message);
      } else {
        emit(message, 0);
      }
    }
  }

  /// Writes a message at sender and receiver; the receiver has it at time `arrival`.
  void emit(int index, std::int64_t arrival) {
    const Message& message = messages_[static_cast<std::size_t>(index)];
    const Channel& channel = pipeline_.channels[static_cast<std::size_t>(message.channel)];
    Action action;
    action.microbatch = message.microbatch;
    action.channel = message.channel;
    action.flow = message.flow;
    action.samples = message.route.samples;
    action.kind = ActionKind::kSend;
    action.stage = writer_of(channel, message.flow);
    action.peer = message.route.to;
    program_.ranks[message.route.from.index()].push_back(action);
    action.kind = ActionKind::kReceive;
    action.stage = reader_of(channel, message.flow);
    action.peer = message.route.from;
    program_.ranks[message.route.to.index()].push_back(action);
    if (message.reader < 0) return;

    Slot& waiting = slot(units_[static_cast<std::size_t>(message.reader)], message.microbatch, message.flow);
    waiting.ready_at = std::max(waiting.ready_at, arrival);
    --waiting.missing;
  }

  void emit_inputs(const Lane& lane, std::size_t position) {
    if (position >= lane.computes.size()) return;
    const LaneAction compute = lane.computes[position];
    if (compute.kind == ActionKind::kBackwardWeight) return;
    for (const int message : slot(units_[compute.unit], compute.microbatch, flow_of(compute.kind)).inputs)
      emit(message, 0);
  }

  void enqueue_if_ready(std::size_t l) {
    const Lane& lane = lanes_[l];
    if (lane.next == lane.computes.size()) return;
    std::int64_t start = 0;
    const auto together = taken_together(l);
    const LaneAction compute = lane.computes[lane.next];
    for (const std::size_t each : together) {
      const auto at = comes_to(each, compute) ? ready_at(each) : kNotStartable;
      if (at == kNotStartable) return;
      start = std::max(start, at);
    }
    for (const std::size_t each : together) enqueue(each, start);
  }

  /// Whether a lane's next compute action is the given one, for the lane's own replica.
  [[nodiscard]] bool comes_to(std::size_t l, LaneAction compute) const {
    const Lane& lane = lanes_[l];
    if (lane.next == lane.computes.size()) return false;
    const LaneAction own = lane.computes[lane.next];
    return own.kind == compute.kind && own.microbatch == compute.microbatch &&
           units_[own.unit].stage == units_[compute.unit].stage;
  }

  /// When a lane's next compute action can start.
  [[nodiscard]] std::int64_t ready_at(std::size_t l) {
    const Lane& lane = lanes_[l];
    const LaneAction compute = lane.computes[lane.next];
    const auto free_at = free_at_[lane.rank.index()];
    if (compute.kind == ActionKind::kBackwardWeight) return free_at;
    const Slot& waiting = slot(units_[compute.unit], compute.microbatch, flow_of(compute.kind));
    return waiting.missing == 0 ? std::max(free_at, waiting.ready_at) : kNotStartable;
  }

  void enqueue(std::size_t l, std::int64_t start) {
    lanes_[l].startable_at = start;
    startable_.push({start, l});
  }

  /// The lane of a rank whose compute action starts first: the earliest micro-batch, then the earliest stage.
  [[nodiscard]] std::size_t first_of_rank(std::size_t l, std::int64_t now) const {
    const auto priority = [&](std::size_t lane) {
      const LaneAction compute = lanes_[lane].computes[lanes_[lane].next];
      return std::pair(compute.microbatch, units_[compute.unit].stage);
    };
    for (const int u : units_of_rank_[lanes_[l].rank.index()]) {
      const std::size_t other = units_[static_cast<std::size_t>(u)].lane;
      const auto at = lanes_[other].startable_at;
      if (at != kNotStartable && at <= now && priority(other) < priority(l)) l = other;
    }
    return l;
  }

  /// After a rank has become busy: delays its other compute actions.
  void hold_up(Rank rank) {
    const auto free_at = free_at_[rank.index()];
    for (const int u : units_of_rank_[rank.index()]) {
      const std::size_t lane = units_[static_cast<std::size_t>(u)].lane;
      const auto at = lanes_[lane].startable_at;
      if (at != kNotStartable && at < free_at) enqueue_if_ready(lane);
    }
  }

  /// Runs a lane's next compute action, together with those of the stage's other replicas that join it, right between
  /// their collectives.
  void run_computes(std::size_t l, std::int64_t start) {
    const Lane& lane = lanes_[l];
    const LaneAction compute = lane.computes[lane.next];
    const StageId stage = units_[compute.unit].stage;
    const auto together = taken_together(l);
    append_gatherings(stage, compute);
    for (const std::size_t each : together) begin_compute(each, start);
    if (gives_weight_gradients(compute.kind)) append_sums(stage, compute);
    for (const std::size_t each : together) end_compute(each);
  }

  void begin_compute(std::size_t l, std::int64_t start) {
    const LaneAction compute = lanes_[l].computes[lanes_[l].next++];
    Unit& unit = units_[compute.unit];
    free_at_[unit.rank.index()] = start + duration(compute.kind);
    lanes_[l].startable_at = kNotStartable;
    hold_up(unit.rank);
    Action action;
    action.kind = compute.kind;
    action.stage = unit.stage;
    action.microbatch = compute.microbatch;
    action.flow = flow_of(compute.kind);
    action.samples = split_.slice(unit.stage, unit.replica, compute.microbatch);
    program_.ranks[unit.rank.index()].push_back(action);
  }

  void end_compute(std::size_t l) {
    const std::size_t position = lanes_[l].next - 1;
    const LaneAction compute = lanes_[l].computes[position];
    Unit& unit = units_[compute.unit];
    const Flow flow = flow_of(compute.kind);
    if (compute.kind != ActionKind::kBackwardWeight) {
      for (const int message : slot(unit, compute.microbatch, flow).outputs) {
        emit(message, free_at_[unit.rank.index()]);
        const int reader = messages_[static_cast<std::size_t>(message)].reader;
        if (reader >= 0 && units_[static_cast<std::size_t>(reader)].lane != l) {
          enqueue_if_awaited(static_cast<std::size_t>(reader), compute.microbatch, flow);
        }
      }
    }
    emit_inputs(lanes_[l], position + kInputsAhead);
    enqueue_if_ready(l);
    if (--unit.computes_left == 0) emit_reductions();
  }

  // ---- compute actions that all replicas of a stage run together

  void find_joint_computes() {
    for (const Mesh& mesh : pipeline_.stages)
      around_computes_.emplace_back(static_cast<std::size_t>(mesh.tensor()), AroundComputes{});
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (group.zero < 2) continue;
      const auto shard = static_cast<std::size_t>(shard_of(pipeline_, group));
      AroundComputes& around = around_computes_[group.stage.index()][shard];
      if (gathers_in_computes(group)) around.by_part.push_back(static_cast<int>(g));
      if (sums_in_computes(group)) around.sums.push_back(static_cast<int>(g));
    }
    for (std::size_t s = 0; s < around_computes_.size(); ++s) {
      for (std::size_t shard = 0; shard < around_computes_[s].size(); ++shard) {
        AroundComputes& around = around_computes_[s][shard];
        if (around.by_part.empty()) continue;
        around.by_forward.assign(around.by_part.rbegin(), around.by_part.rend());
        around.by_backward = gathered_by_backward(pipeline_, StageId::of(s), static_cast<int>(shard));
      }
    }
  }

  /// The lanes that run a lane's next compute action together, whether they have reached it or not. These are the lanes
  /// of all replicas, of the tensor shards of one replica, or the lane alone.
  [[nodiscard]] std::vector<std::size_t> taken_together(std::size_t l) const {
    const LaneAction compute = lanes_[l].computes[lanes_[l].next];
    const StageId stage = units_[compute.unit].stage;
    const bool all_replicas = std::ranges::any_of(around_computes_[stage.index()], [&](const AroundComputes& around) {
      return !around.by_part.empty() || (!around.sums.empty() && gives_weight_gradients(compute.kind));
    });
    if (!all_replicas && !exchanges_in_compute(pipeline_.stages[stage.index()], compute.kind)) return {l};
    const int replica = units_[compute.unit].replica;
    std::vector<std::size_t> lanes;
    for (const std::size_t u : units_of_stage_[stage.index()]) {
      const Unit& unit = units_[u];
      if (!all_replicas && unit.replica != replica) continue;
      if (!split_.slice(stage, unit.replica, compute.microbatch).empty()) lanes.push_back(unit.lane);
    }
    return lanes;
  }

  void append_gatherings(StageId stage, LaneAction compute) {
    for (const AroundComputes& around : around_computes_[stage.index()]) {
      int gathered = 0;
      for (const int g : around.gathered_by(compute.kind)) {
        const int buckets = pipeline_.groups[static_cast<std::size_t>(g)].buckets;
        for (int b = 0; b < buckets; ++b) {
          const int bucket = compute.kind == ActionKind::kForward ? buckets - 1 - b : b;
          append_for_members(ActionKind::kAllGather, g, bucket, compute, gathered++);
        }
      }
    }
  }

  void append_sums(StageId stage, LaneAction compute) {
    for (const AroundComputes& around : around_computes_[stage.index()]) {
      int gathered = 0, after = 0;
      for (const int g : around.gathered_by(compute.kind))
        gathered += pipeline_.groups[static_cast<std::size_t>(g)].buckets;
      for (const int g : around.sums) {
        const ReduceGroup& group = pipeline_.groups[static_cast<std::size_t>(g)];
        after = std::max(after, compute.kind == ActionKind::kBackward ? behind(group, gathered) : gathered);
        for (int b = 0; b < group.buckets; ++b) append_for_members(ActionKind::kReduceScatter, g, b, compute, after);
      }
    }
  }

  /// For every member, including those without samples.
  void append_for_members(ActionKind kind, int group, int bucket, LaneAction compute, int after) {
    for (const Rank rank : pipeline_.groups[static_cast<std::size_t>(group)].ranks)
      append_collective(rank, kind, group, bucket, flow_of(compute.kind), compute.microbatch, after);
  }

  /// The number of a whole backward's gathers that precede a group's reductions.
  [[nodiscard]] static int behind(const ReduceGroup& group, int gathered) {
    return group.filled_after < gathered - kGathersAhead ? group.filled_after + kGathersAhead : gathered;
  }

  void append_collective(Rank rank, ActionKind kind, int group, int bucket, Flow flow, int microbatch = -1,
                         int after = 0) {
    program_.ranks[rank.index()].push_back({.kind = kind,
                                            .stage = pipeline_.groups[static_cast<std::size_t>(group)].stage,
                                            .microbatch = microbatch,
                                            .flow = flow,
                                            .group = group,
                                            .bucket = bucket,
                                            .after = after});
  }

  /// Gathers parameters that stay unsharded for the call.
  void gather_for_call() {
    if (phase_ == Phase::kBackward) return;
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (group.zero == 0 || group.zero >= 3) continue;
      for (int b = 0; b < group.buckets; ++b) {
        for (const Rank rank : group.ranks) {
          append_collective(rank, ActionKind::kAllGather, static_cast<int>(g), b, Flow::kValue);
        }
      }
    }
  }

  /// After a message: the receiver may start if its lane has reached the compute action that needs it, and nothing else
  /// is missing.
  void enqueue_if_awaited(std::size_t u, int microbatch, Flow flow) {
    const Lane& lane = lanes_[units_[u].lane];
    if (lane.next == lane.computes.size()) return;
    const LaneAction compute = lane.computes[lane.next];
    const bool awaits = compute.unit == u && compute.microbatch == microbatch && flow_of(compute.kind) == flow &&
                        compute.kind != ActionKind::kBackwardWeight;
    if (awaits) enqueue_if_ready(units_[u].lane);
  }

  /// Writes the reductions whose members have all finished the compute actions that fill their buckets. They are in the
  /// pipeline's order on every rank.
  void emit_reductions() {
    if (phase_ == Phase::kForward || !any_is_through()) return;
    std::vector<bool> held_up(program_.ranks.size(), false);  // by an earlier group that must wait
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (emitted_[g] || group.zero >= 2) continue;
      bool ready = true;
      for (const Rank rank : group.ranks) ready = ready && !held_up[rank.index()] && is_through(rank, group.stage);
      for (const Rank rank : group.ranks) {
        if (!ready)
          held_up[rank.index()] = true;
        else
          append_buckets(rank, static_cast<int>(g));
      }
      emitted_[g] = ready;
    }
  }

  /// Whether all members of some group have finished. Checks first the member that had not finished the last time.
  [[nodiscard]] bool any_is_through() {
    awaited_.resize(pipeline_.groups.size(), 0);
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (emitted_[g]) continue;
      std::size_t& at = awaited_[g];  // members before it have finished, and stay so
      while (at < group.ranks.size() && is_through(group.ranks[at], group.stage)) ++at;
      if (at == group.ranks.size()) return true;
    }
    return false;
  }

  /// @param stage  invalid: all stages of the rank
  [[nodiscard]] bool is_through(Rank rank, StageId stage) const {
    const auto& units = units_of_rank_[rank.index()];
    return std::all_of(units.begin(), units.end(), [&](int u) {
      const Unit& unit = units_[static_cast<std::size_t>(u)];
      return unit.computes_left == 0 || (stage.valid() && unit.stage != stage);
    });
  }

  void append_buckets(Rank rank, int group) {
    const ReduceGroup& reduced = pipeline_.groups[static_cast<std::size_t>(group)];
    const auto kind = reduced.zero == 0 ? ActionKind::kAllReduce : ActionKind::kReduceScatter;
    for (int b = 0; b < reduced.buckets; ++b) append_collective(rank, kind, group, b, Flow::kGradient);
  }

  [[noreturn]] void refuse_cycle(LaneAction compute) const {
    throw CyclicOrders(std::string("schedule policy: the orders of the stages wait for each other; stage ") +
                       std::to_string(units_[compute.unit].stage.value()) + " never gets what it needs for the " +
                       (compute.kind == ActionKind::kForward ? "forward" : "backward") + " of micro-batch " +
                       std::to_string(compute.microbatch));
  }

  const Pipeline& pipeline_;
  const BatchSplit& split_;
  Phase phase_;
  Program program_;
  std::vector<std::int64_t> free_at_;  // by rank
  std::vector<Unit> units_;
  std::vector<std::vector<int>> units_of_rank_;
  std::vector<std::vector<std::size_t>> units_of_stage_;
  std::vector<std::vector<AroundComputes>> around_computes_;  // [stage][tensor shard]
  std::vector<Lane> lanes_;
  std::vector<Message> messages_;
  std::vector<bool> emitted_;                          // by group
  std::vector<std::size_t> awaited_;                   // by group: the first member that has not finished
  using Start = std::pair<std::int64_t, std::size_t>;  // time, lane
  std::priority_queue<Start, std::vector<Start>, std::greater<>> startable_;
};

}  // namespace detail

/// The program of every rank in one call: forwards and backwards in the policy's order, the messages between them, and
/// the gradient reductions. Pure: every rank computes the same program. `find_fault` lists the laws that it keeps. In
/// addition:
///
/// - All ranks' lists are projections of one total order, so the program completes even if a send waits for its
///   receive.
/// - A send directly follows its producer. A receive stands where the producer starts, so that it can be posted before
///   the data are ready. A message within a rank is a send and a receive with the rank itself as peer.
/// - A replica with an empty slice of a micro-batch does nothing for it. All members of a group reduce, even if they
///   had no sample. To run without reductions (`no_sync`), pass a pipeline without groups.
/// @throws InvalidArgument if pipeline or layout are malformed, or the policy violates its laws
/// @throws CyclicOrders if the policy's orders do not suit this pipeline's channels
/// @cost O(actions * log(ranks))
template <class Policy>
[[nodiscard]] Program make_program(const Pipeline& pipeline, const BatchLayout& layout, const Policy& policy,
                                   Phase phase = Phase::kStep) {
  static_assert(
      SchedulePolicy<Policy>,
      "make_program: the schedule does not model SchedulePolicy: it needs `using policy_category = "
      "schedule_policy_tag`, and for orders of stages `std::vector<ComputeAction> order(StageId, int stages, int "
      "microbatches) const` and `int peak_activations(StageId, int stages, int microbatches) const`, or for "
      "orders of ranks `std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline&, int microbatches) "
      "const`");
  const BatchSplit split(pipeline, layout);
  detail::ProgramBuilder builder(pipeline, split, phase);
  if constexpr (RankOrderPolicy<Policy>) {
    const std::vector<std::vector<ComputeAction>> orders = policy.rank_orders(pipeline, layout.microbatches);
    detail::check_rank_orders(pipeline, orders, layout.microbatches);
    builder.add_rank_orders(orders);
  } else {
    const int stages = static_cast<int>(pipeline.stages.size());
    std::vector<std::vector<ComputeAction>> orders;
    for (int s = 0; s < stages; ++s) {
      orders.push_back(policy.order(StageId(s), stages, layout.microbatches));
      detail::check_computes(orders.back(), static_cast<std::size_t>(s), layout.microbatches);
    }
    builder.add_stage_orders(orders);
  }
  return std::move(builder).build();
}

}  // namespace autopar
