#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <set>
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
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
      add_units(StageId::of(s));
      find_around_computes(StageId::of(s));
    }
  }

  /// Sets units of a rank to one order. \@param stage  of compute actions that name none
  void add_lane(Rank rank, const std::vector<ComputeAction>& computes, StageId stage = StageId::none()) {
    lanes_.push_back({rank, {}});
    for (const ComputeAction compute : computes) {
      const std::size_t u = unit_of(stage.valid() ? stage : compute.stage, rank);
      Unit& unit = units_[u];
      unit.lane = lanes_.size() - 1;
      const bool in_phase =
          phase_ == Phase::kStep || (phase_ == Phase::kForward) == (compute.kind == ActionKind::kForward);
      if (!in_phase || split_.slice(unit.stage, unit.replica, compute.microbatch).empty()) continue;
      lanes_.back().computes.push_back({u, compute.kind, compute.microbatch});
      ++unit.computes_left;
    }
  }

  [[nodiscard]] Program build() && {
    constexpr std::size_t kOfACompute = 3;  // actions: itself, about one message in and one out
    for (const Lane& lane : lanes_) {
      auto& actions = program_.ranks[lane.rank.index()];
      actions.reserve(actions.capacity() + kOfACompute * lane.computes.size());
    }
    add_messages();
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
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  static constexpr std::int64_t kNotStartable = -1;

  struct Message {
    Action send;
    Rank from;
    std::size_t writer, reader;  // units; kNone: source or sink
    std::size_t next = kNone;    // in its list of `Slot`
  };
  struct Slot {  // what a forward, or a backward that computes input gradients, reads and produces
    int missing = 0;
    std::int64_t ready_at = 0;
    std::size_t inputs = kNone;   // the first message from the source or the sink
    std::size_t outputs = kNone;  // the first message that this compute action produces
  };
  struct Unit {
    Rank rank;
    StageId stage;
    int replica;
    std::vector<Slot> slots;  // [2 * microbatch + (gradients ? 1 : 0)]
    std::size_t lane = 0;
    std::size_t computes_left = 0;
  };
  /// What the compute actions of a stage gather, in the order of use, and the groups that they reduce. A part of a
  /// backward gathers each bucket once.
  struct AroundComputes {
    using Buckets = std::vector<std::pair<int, int>>;  // group, bucket
    Buckets by_forward, by_backward, by_part;
    std::vector<int> sums;

    [[nodiscard]] const Buckets& gathered_by(ActionKind compute) const {
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

  static Slot& slot(Unit& unit, int microbatch, Flow flow) {
    return unit.slots[2 * static_cast<std::size_t>(microbatch) + (flow == Flow::kGradient ? 1 : 0)];
  }
  static Flow flow_of(ActionKind kind) { return kind == ActionKind::kForward ? Flow::kValue : Flow::kGradient; }
  /// Nominal durations: a weight backward takes as long as an input backward.
  static std::int64_t duration(ActionKind kind) { return kind == ActionKind::kBackward ? 2 : 1; }

  void add_units(StageId stage) {
    const Mesh& mesh = pipeline_.stages[stage.index()];
    first_unit_.push_back(units_.size());
    for (std::size_t i = 0; i < mesh.ranks().size(); ++i) {
      Unit unit{mesh.ranks()[i], stage, static_cast<int>(i) / mesh.tensor(), {}};
      unit.slots.resize(2 * static_cast<std::size_t>(split_.microbatches()));
      units_of_rank_[unit.rank.index()].push_back(units_.size());
      units_.push_back(std::move(unit));
    }
  }

  /// The unit of a stage on a rank; kNone if there is none.
  [[nodiscard]] std::size_t unit_of(StageId stage, Rank rank) const {
    for (const std::size_t u : units_of_rank_[rank.index()]) {
      if (units_[u].stage == stage) return u;
    }
    return kNone;
  }

  // ---- messages

  void add_messages() {
    for (int m = 0; m < split_.microbatches(); ++m) {
      for (std::size_t c = 0; c < pipeline_.channels.size(); ++c) {
        add_messages(static_cast<int>(c), m, Flow::kValue);
        add_messages(static_cast<int>(c), m, Flow::kGradient);
      }
    }
    for (std::size_t i = messages_.size(); i-- > 0;) {
      Message& message = messages_[i];
      if (message.writer == kNone && message.reader == kNone) continue;
      Slot& of = slot(units_[message.writer != kNone ? message.writer : message.reader], message.send.microbatch,
                      message.send.flow);
      message.next = std::exchange(message.writer != kNone ? of.outputs : of.inputs, i);
    }
  }

  void add_messages(int c, int m, Flow flow) {
    const Channel& channel = pipeline_.channels[static_cast<std::size_t>(c)];
    if (!travels(channel, flow, phase_)) return;
    for (const Route& route : split_.routes(channel, m, flow)) {
      const StageId writer = writer_of(channel, flow), reader = reader_of(channel, flow);
      const Action send{.kind = ActionKind::kSend,
                        .stage = writer,
                        .microbatch = m,
                        .channel = c,
                        .flow = flow,
                        .peer = route.to,
                        .samples = route.samples};
      messages_.push_back({send, route.from, unit_of(writer, route.from), unit_of(reader, route.to)});
      const Message& message = messages_.back();
      if (message.reader != kNone)
        ++slot(units_[message.reader], m, flow).missing;
      else if (message.writer == kNone)
        emit(message, 0);
    }
  }

  /// Writes a message at sender and receiver; the receiver has it at time `arrival`.
  void emit(const Message& message, std::int64_t arrival) {
    Action action = message.send;
    program_.ranks[message.from.index()].push_back(action);
    action.kind = ActionKind::kReceive;
    action.stage = reader_of(pipeline_.channels[static_cast<std::size_t>(action.channel)], action.flow);
    action.peer = message.from;
    program_.ranks[message.send.peer.index()].push_back(action);
    if (message.reader == kNone) return;
    Slot& waiting = slot(units_[message.reader], action.microbatch, action.flow);
    waiting.ready_at = std::max(waiting.ready_at, arrival);
    --waiting.missing;
  }

  void emit_inputs(const Lane& lane, std::size_t position) {
    if (position >= lane.computes.size()) return;
    const LaneAction compute = lane.computes[position];
    if (compute.kind == ActionKind::kBackwardWeight) return;
    const Slot& of = slot(units_[compute.unit], compute.microbatch, flow_of(compute.kind));
    for (std::size_t i = of.inputs; i != kNone; i = messages_[i].next) emit(messages_[i], 0);
  }

  // ---- when compute actions start

  void enqueue_if_ready(std::size_t l) {
    const Lane& lane = lanes_[l];
    if (lane.next == lane.computes.size()) return;
    std::int64_t start = 0;
    const auto together = taken_together(l);
    for (const std::size_t each : together) {
      const auto at = ready_at(each, lane.computes[lane.next]);
      if (at == kNotStartable) return;
      start = std::max(start, at);
    }
    for (const std::size_t each : together) {
      lanes_[each].startable_at = start;
      startable_.push({start, each});
    }
  }

  /// The lanes that run a lane's next compute action together, whether they have reached it or not. These are the lanes
  /// of all replicas, of the tensor shards of one replica, or the lane alone.
  [[nodiscard]] std::vector<std::size_t> taken_together(std::size_t l) const {
    const LaneAction compute = lanes_[l].computes[lanes_[l].next];
    const StageId stage = units_[compute.unit].stage;
    const Mesh& mesh = pipeline_.stages[stage.index()];
    const bool all_replicas = std::ranges::any_of(around_computes_[stage.index()], [&](const AroundComputes& around) {
      return !around.by_part.empty() || (!around.sums.empty() && gives_weight_gradients(compute.kind));
    });
    std::size_t first = compute.unit, count = 1;
    if (all_replicas) {
      first = first_unit_[stage.index()];
      count = mesh.ranks().size();
    } else if (exchanges_in_compute(mesh, compute.kind)) {
      count = static_cast<std::size_t>(mesh.tensor());
      first -= (first - first_unit_[stage.index()]) % count;
    }
    std::vector<std::size_t> lanes;
    for (std::size_t u = first; u < first + count; ++u) {
      if (!split_.slice(stage, units_[u].replica, compute.microbatch).empty()) lanes.push_back(units_[u].lane);
    }
    return lanes;
  }

  /// What a lane's next compute action waits for; null if it needs no messages, or there is none.
  [[nodiscard]] const Slot* awaited(const Lane& lane) {
    if (lane.next == lane.computes.size()) return nullptr;
    const LaneAction compute = lane.computes[lane.next];
    if (compute.kind == ActionKind::kBackwardWeight) return nullptr;
    return &slot(units_[compute.unit], compute.microbatch, flow_of(compute.kind));
  }

  /// When a lane can start a compute action, for its own replica; kNotStartable if that is not its next one.
  [[nodiscard]] std::int64_t ready_at(std::size_t l, LaneAction compute) {
    const Lane& lane = lanes_[l];
    if (lane.next == lane.computes.size()) return kNotStartable;
    const LaneAction own = lane.computes[lane.next];
    const bool is_next = own.kind == compute.kind && own.microbatch == compute.microbatch &&
                         units_[own.unit].stage == units_[compute.unit].stage;
    const Slot* waiting = awaited(lane);
    if (!is_next || (waiting != nullptr && waiting->missing > 0)) return kNotStartable;
    return std::max(free_at_[lane.rank.index()], waiting == nullptr ? 0 : waiting->ready_at);
  }

  /// The lane of a rank whose compute action starts first: the earliest micro-batch, then the earliest stage.
  [[nodiscard]] std::size_t first_of_rank(std::size_t l, std::int64_t now) const {
    const auto priority = [&](std::size_t lane) {
      const LaneAction compute = lanes_[lane].computes[lanes_[lane].next];
      return std::pair(compute.microbatch, units_[compute.unit].stage);
    };
    for (const std::size_t u : units_of_rank_[lanes_[l].rank.index()]) {
      const std::size_t other = units_[u].lane;
      const auto at = lanes_[other].startable_at;
      if (at != kNotStartable && at <= now && priority(other) < priority(l)) l = other;
    }
    return l;
  }

  /// After a rank has become busy: delays its other compute actions.
  void hold_up(Rank rank) {
    for (const std::size_t u : units_of_rank_[rank.index()]) {
      const auto at = lanes_[units_[u].lane].startable_at;
      if (at != kNotStartable && at < free_at_[rank.index()]) enqueue_if_ready(units_[u].lane);
    }
  }

  /// Runs a lane's next compute action, together with those of the stage's other replicas that join it, right between
  /// their collectives.
  void run_computes(std::size_t l, std::int64_t start) {
    const LaneAction compute = lanes_[l].computes[lanes_[l].next];
    const StageId stage = units_[compute.unit].stage;
    const auto together = taken_together(l);
    append_gatherings(stage, compute);
    for (const std::size_t each : together) begin_compute(each, start);
    if (gives_weight_gradients(compute.kind)) append_sums(stage, compute);
    for (const std::size_t each : together) end_compute(each);
  }

  void begin_compute(std::size_t l, std::int64_t start) {
    const LaneAction compute = lanes_[l].computes[lanes_[l].next++];
    const Unit& unit = units_[compute.unit];
    free_at_[unit.rank.index()] = start + duration(compute.kind);
    lanes_[l].startable_at = kNotStartable;
    hold_up(unit.rank);
    program_.ranks[unit.rank.index()].push_back(
        {.kind = compute.kind,
         .stage = unit.stage,
         .microbatch = compute.microbatch,
         .flow = flow_of(compute.kind),
         .samples = split_.slice(unit.stage, unit.replica, compute.microbatch)});
  }

  void end_compute(std::size_t l) {
    const std::size_t position = lanes_[l].next - 1;
    const LaneAction compute = lanes_[l].computes[position];
    Unit& unit = units_[compute.unit];
    if (compute.kind != ActionKind::kBackwardWeight) {
      const Flow flow = flow_of(compute.kind);
      for (std::size_t i = slot(unit, compute.microbatch, flow).outputs; i != kNone; i = messages_[i].next) {
        emit(messages_[i], free_at_[unit.rank.index()]);
        if (messages_[i].reader == kNone) continue;
        Unit& reader = units_[messages_[i].reader];
        const bool awaits = awaited(lanes_[reader.lane]) == &slot(reader, compute.microbatch, flow);
        if (awaits && reader.lane != l) enqueue_if_ready(reader.lane);
      }
    }
    emit_inputs(lanes_[l], position + kInputsAhead);
    enqueue_if_ready(l);
    if (--unit.computes_left == 0) emit_reductions();
  }

  // ---- collectives

  void find_around_computes(StageId stage) {
    auto& of_shards = around_computes_.emplace_back(static_cast<std::size_t>(pipeline_.stages[stage.index()].tensor()));
    for (std::size_t shard = 0; shard < of_shards.size(); ++shard) {
      AroundComputes& around = of_shards[shard];
      for (const int g : gathered_by_backward(pipeline_, stage, static_cast<int>(shard))) {
        for (int b = 0; b < group(g).buckets; ++b) around.by_backward.emplace_back(g, b);
      }
      const std::set<std::pair<int, int>> each(around.by_backward.begin(), around.by_backward.end());
      around.by_part.assign(each.begin(), each.end());
      around.by_forward.assign(each.rbegin(), each.rend());
    }
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (group.stage != stage || !sums_in_computes(group)) continue;
      of_shards[static_cast<std::size_t>(shard_of(pipeline_, group))].sums.push_back(static_cast<int>(g));
    }
  }

  void append_gatherings(StageId stage, LaneAction compute) {
    for (const AroundComputes& around : around_computes_[stage.index()]) {
      int after = 0;
      for (const auto& [g, b] : around.gathered_by(compute.kind))
        append(ActionKind::kAllGather, g, b, flow_of(compute.kind), compute.microbatch, after++);
    }
  }

  void append_sums(StageId stage, LaneAction compute) {
    for (const AroundComputes& around : around_computes_[stage.index()]) {
      const int gathered = static_cast<int>(around.gathered_by(compute.kind).size());
      int after = 0;
      for (const int g : around.sums) {
        const bool waits_for_all =
            compute.kind != ActionKind::kBackward || group(g).filled_after >= gathered - kGathersAhead;
        after = std::max(after, waits_for_all ? gathered : group(g).filled_after + kGathersAhead);
        for (int b = 0; b < group(g).buckets; ++b)
          append(ActionKind::kReduceScatter, g, b, Flow::kGradient, compute.microbatch, after);
      }
    }
  }

  /// Appends a collective to the programs of all members, including those without samples.
  void append(ActionKind kind, int g, int bucket, Flow flow, int microbatch = -1, int after = 0) {
    for (const Rank rank : group(g).ranks) {
      program_.ranks[rank.index()].push_back({.kind = kind,
                                              .stage = group(g).stage,
                                              .microbatch = microbatch,
                                              .flow = flow,
                                              .group = g,
                                              .bucket = bucket,
                                              .after = after});
    }
  }
  [[nodiscard]] const ReduceGroup& group(int g) const { return pipeline_.groups[static_cast<std::size_t>(g)]; }

  /// Gathers parameters that stay unsharded for the call.
  void gather_for_call() {
    for (std::size_t g = 0; g < pipeline_.groups.size() && phase_ != Phase::kBackward; ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (group.zero == 0 || group.zero >= 3) continue;
      for (int b = 0; b < group.buckets; ++b) append(ActionKind::kAllGather, static_cast<int>(g), b, Flow::kValue);
    }
  }

  /// Writes the reductions whose members have all finished the compute actions that fill their buckets. They are in the
  /// pipeline's order on every rank.
  void emit_reductions() {
    if (phase_ == Phase::kForward) return;
    std::vector<bool> held_up(program_.ranks.size(), false);  // by an earlier group that must wait
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      if (emitted_[g] || group.zero >= 2) continue;
      emitted_[g] = std::ranges::all_of(
          group.ranks, [&](Rank rank) { return !held_up[rank.index()] && is_through(rank, group.stage); });
      const auto kind = group.zero == 0 ? ActionKind::kAllReduce : ActionKind::kReduceScatter;
      for (int b = 0; b < group.buckets && emitted_[g]; ++b) append(kind, static_cast<int>(g), b, Flow::kGradient);
      for (std::size_t i = 0; i < group.ranks.size() && !emitted_[g]; ++i) held_up[group.ranks[i].index()] = true;
    }
  }

  /// @param stage  invalid: all stages of the rank
  [[nodiscard]] bool is_through(Rank rank, StageId stage) const {
    return std::ranges::all_of(units_of_rank_[rank.index()], [&](std::size_t u) {
      return units_[u].computes_left == 0 || (stage.valid() && units_[u].stage != stage);
    });
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
  std::vector<std::int64_t> free_at_;    // by rank
  std::vector<Unit> units_;              // by stage, then as in its mesh
  std::vector<std::size_t> first_unit_;  // by stage
  std::vector<std::vector<std::size_t>> units_of_rank_;
  std::vector<std::vector<AroundComputes>> around_computes_;  // [stage][tensor shard]
  std::vector<Lane> lanes_;
  std::vector<Message> messages_;
  std::vector<bool> emitted_;                          // by group
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
    for (std::size_t r = 0; r < orders.size(); ++r) builder.add_lane(Rank::of(r), orders[r]);
  } else {
    const auto stages = pipeline.stages.size();
    for (std::size_t s = 0; s < stages; ++s) {
      const auto order = policy.order(StageId::of(s), static_cast<int>(stages), layout.microbatches);
      detail::check_computes(order, s, layout.microbatches);
      for (const Rank rank : pipeline.stages[s].ranks()) builder.add_lane(rank, order, StageId::of(s));
    }
  }
  return std::move(builder).build();
}

}  // namespace autopar
