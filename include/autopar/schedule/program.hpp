#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

namespace detail {

/// Throws InvalidArgument unless the turns name each micro-batch once as forward and, later, once as backward.
inline void check_turns(const std::vector<Turn>& turns, std::size_t stage, int microbatches) {
  std::vector<int> passed(static_cast<std::size_t>(microbatches), 0);
  bool sound = turns.size() == 2 * passed.size();
  for (std::size_t i = 0; sound && i < turns.size(); ++i) {
    const Turn turn = turns[i];
    sound = turn.microbatch >= 0 && turn.microbatch < microbatches &&
            (turn.kind == ActionKind::kForward || turn.kind == ActionKind::kBackward) &&
            passed[static_cast<std::size_t>(turn.microbatch)]++ == (turn.kind == ActionKind::kForward ? 0 : 1);
  }
  if (!sound) {
    throw InvalidArgument("schedule policy: the order of stage " + std::to_string(stage) +
                          " must name each of the " + std::to_string(microbatches) +
                          " micro-batches once as forward and, later, once as backward");
  }
}

/// Plays all units (one replica of one stage) against each other with nominal durations and writes down one total
/// order: a forward or backward when it starts, its messages right behind it, each at both of its ends. What a rank sees
/// of that order is its program.
class ProgramBuilder {
 public:
  ProgramBuilder(const Pipeline& pipeline, const BatchSplit& split, const std::vector<std::vector<Turn>>& turns,
                 Phase phase)
      : pipeline_(pipeline), split_(split), phase_(phase) {
    program_.ranks.resize(static_cast<std::size_t>(pipeline.ranks));
    emitted_.resize(pipeline.groups.size(), false);
    add_units(turns);
    for (int m = 0; m < split.microbatches(); ++m) {
      for (std::size_t c = 0; c < pipeline.channels.size(); ++c) {
        add_messages(static_cast<int>(c), m, Flow::kValue);
        add_messages(static_cast<int>(c), m, Flow::kGradient);
      }
    }
  }

  [[nodiscard]] Program build() && {
    for (std::size_t ahead = 0; ahead < kInputsAhead; ++ahead) {
      for (Unit& unit : units_) emit_inputs(unit, ahead);
    }
    for (std::size_t u = 0; u < units_.size(); ++u) enqueue_if_ready(u);
    emit_reductions();
    while (!startable_.empty()) {
      const auto [start, u] = startable_.top();
      startable_.pop();
      run_turn(u, start);
    }
    for (const Unit& unit : units_) {
      if (unit.next < unit.turns.size()) refuse_cycle(unit);
    }
    return std::move(program_);
  }

 private:
  // A stage's inputs leave their ranks two turns early: a source that is busy with a turn of its own sends behind it.
  static constexpr std::size_t kInputsAhead = 2;

  struct Message {
    int channel;
    int microbatch;
    Flow flow;
    Route route;
    int reader;  // unit, -1 if the source or the sink
  };
  struct Slot {  // one turn of a unit
    int missing = 0;
    std::int64_t ready_at = 0;
    std::vector<int> inputs;   // messages from the source or the sink
    std::vector<int> outputs;  // messages that this turn makes
  };
  struct Unit {
    Rank rank;
    StageId stage;
    int replica;
    std::vector<Turn> turns;
    std::vector<Slot> slots;  // [2 * microbatch + (backward ? 1 : 0)]
    std::size_t next = 0;
    std::int64_t free_at = 0;
  };

  static Slot& slot(Unit& unit, Turn turn) {
    return unit.slots[2 * static_cast<std::size_t>(turn.microbatch) + (turn.kind == ActionKind::kBackward ? 1 : 0)];
  }

  void add_units(const std::vector<std::vector<Turn>>& turns) {
    unit_of_rank_.resize(static_cast<std::size_t>(pipeline_.ranks), -1);
    for (std::size_t s = 0; s < pipeline_.stages.size(); ++s) {
      for (std::size_t q = 0; q < pipeline_.stages[s].size(); ++q) {
        Unit unit{pipeline_.stages[s][q], StageId::of(s), static_cast<int>(q), {}, {}};
        unit.slots.resize(2 * static_cast<std::size_t>(split_.microbatches()));
        for (const Turn turn : turns[s]) {
          const bool in_phase = phase_ == Phase::kStep ||
                                (phase_ == Phase::kForward) == (turn.kind == ActionKind::kForward);
          if (in_phase && !share(unit, turn).empty()) unit.turns.push_back(turn);
        }
        unit_of_rank_[unit.rank.index()] = static_cast<int>(units_.size());
        units_.push_back(std::move(unit));
      }
    }
  }

  void add_messages(int c, int m, Flow flow) {
    const Channel& channel = pipeline_.channels[static_cast<std::size_t>(c)];
    if (!travels(channel, flow, phase_)) return;
    const StageId writer_stage = flow == Flow::kValue ? channel.from : channel.to;
    const StageId reader_stage = flow == Flow::kValue ? channel.to : channel.from;
    const Turn turn{flow == Flow::kValue ? ActionKind::kForward : ActionKind::kBackward, m};
    for (const Route& route : split_.routes(channel, m, flow)) {
      const int writer = writer_stage.valid() ? unit_of_rank_[route.from.index()] : -1;
      const int reader = reader_stage.valid() ? unit_of_rank_[route.to.index()] : -1;
      const int message = static_cast<int>(messages_.size());
      messages_.push_back({c, m, flow, route, reader});
      if (reader >= 0) ++slot(units_[static_cast<std::size_t>(reader)], turn).missing;
      if (writer >= 0) {
        slot(units_[static_cast<std::size_t>(writer)], turn).outputs.push_back(message);
      } else if (reader >= 0) {
        slot(units_[static_cast<std::size_t>(reader)], turn).inputs.push_back(message);
      } else {
        emit(message, 0);
      }
    }
  }

  [[nodiscard]] Interval share(const Unit& unit, Turn turn) const {
    return split_.share(unit.stage, unit.replica, turn.microbatch);
  }

  /// Writes a message at both ends; its reader has it at `arrival`.
  void emit(int index, std::int64_t arrival) {
    const Message& message = messages_[static_cast<std::size_t>(index)];
    Action action;
    action.microbatch = message.microbatch;
    action.channel = message.channel;
    action.flow = message.flow;
    action.samples = message.route.samples;
    action.kind = ActionKind::kSend;
    action.peer = message.route.to;
    program_.ranks[message.route.from.index()].push_back(action);
    action.kind = ActionKind::kReceive;
    action.peer = message.route.from;
    program_.ranks[message.route.to.index()].push_back(action);
    if (message.reader < 0) return;

    Unit& reader = units_[static_cast<std::size_t>(message.reader)];
    const Turn turn{message.flow == Flow::kValue ? ActionKind::kForward : ActionKind::kBackward, message.microbatch};
    Slot& waiting = slot(reader, turn);
    waiting.ready_at = std::max(waiting.ready_at, arrival);
    --waiting.missing;
  }

  void emit_inputs(Unit& unit, std::size_t position) {
    if (position >= unit.turns.size()) return;
    for (const int message : slot(unit, unit.turns[position]).inputs) emit(message, 0);
  }

  void enqueue_if_ready(std::size_t u) {
    Unit& unit = units_[u];
    if (unit.next == unit.turns.size()) return;
    const Slot& waiting = slot(unit, unit.turns[unit.next]);
    if (waiting.missing == 0) startable_.push({std::max(unit.free_at, waiting.ready_at), u});
  }

  void run_turn(std::size_t u, std::int64_t start) {
    Unit& unit = units_[u];
    const std::size_t position = unit.next++;
    const Turn turn = unit.turns[position];
    unit.free_at = start + (turn.kind == ActionKind::kForward ? 1 : 2);
    Action action;
    action.kind = turn.kind;
    action.stage = unit.stage;
    action.microbatch = turn.microbatch;
    action.flow = turn.kind == ActionKind::kForward ? Flow::kValue : Flow::kGradient;
    action.samples = share(unit, turn);
    program_.ranks[unit.rank.index()].push_back(action);

    for (const int message : slot(unit, turn).outputs) {
      emit(message, unit.free_at);
      const int reader = messages_[static_cast<std::size_t>(message)].reader;
      if (reader >= 0) enqueue_if_awaited(static_cast<std::size_t>(reader), turn);
    }
    emit_inputs(unit, position + kInputsAhead);
    enqueue_if_ready(u);
    if (unit.next == unit.turns.size()) emit_reductions();
  }

  /// After a message for `turn`: the reader may start now if it has come to that turn and misses nothing more.
  void enqueue_if_awaited(std::size_t u, Turn turn) {
    const Unit& unit = units_[u];
    if (unit.next < unit.turns.size() && unit.turns[unit.next] == turn) enqueue_if_ready(u);
  }

  /// Writes the reductions whose members are all through with their turns, in the pipeline's order on every rank.
  void emit_reductions() {
    if (phase_ == Phase::kForward) return;
    std::vector<bool> held_up(program_.ranks.size(), false);  // by an earlier group that must wait
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      if (emitted_[g]) continue;
      const ReduceGroup& group = pipeline_.groups[g];
      bool ready = true;
      for (const Rank rank : group.ranks) ready = ready && !held_up[rank.index()] && is_through(rank);
      for (const Rank rank : group.ranks) {
        if (!ready) held_up[rank.index()] = true;
        else append_buckets(rank, static_cast<int>(g), group.buckets);
      }
      emitted_[g] = ready;
    }
  }

  [[nodiscard]] bool is_through(Rank rank) const {
    const int u = unit_of_rank_[rank.index()];
    return u < 0 || units_[static_cast<std::size_t>(u)].next == units_[static_cast<std::size_t>(u)].turns.size();
  }

  void append_buckets(Rank rank, int group, int buckets) {
    Action action;
    action.kind = ActionKind::kReduce;
    action.flow = Flow::kGradient;
    action.group = group;
    for (action.bucket = 0; action.bucket < buckets; ++action.bucket) {
      program_.ranks[rank.index()].push_back(action);
    }
  }

  [[noreturn]] static void refuse_cycle(const Unit& unit) {
    const Turn turn = unit.turns[unit.next];
    throw InvalidArgument(std::string("schedule policy: the orders of the stages wait for each other; stage ") +
                          std::to_string(unit.stage.value()) + " never gets what it needs for the " +
                          (turn.kind == ActionKind::kForward ? "forward" : "backward") + " of micro-batch " +
                          std::to_string(turn.microbatch));
  }

  const Pipeline& pipeline_;
  const BatchSplit& split_;
  Phase phase_;
  Program program_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_rank_;
  std::vector<Message> messages_;
  std::vector<bool> emitted_;  // by group
  using Start = std::pair<std::int64_t, std::size_t>;  // time, unit
  std::priority_queue<Start, std::vector<Start>, std::greater<>> startable_;
};

}  // namespace detail

/// What every rank does in one call: forwards and backwards in the policy's order, the messages between them, and the
/// gradient sums. Pure: every rank computes the same program.
///
/// Laws (checked by `validate`): all ranks' lists are projections of one total order, so the program runs to its end
/// even if a send waits for its receive; messages of a directed pair of ranks are received in the order in which they
/// are sent; a send follows its producer directly; a receive comes when the producer starts, so that it can be posted
/// before the data are there; reductions follow a rank's last backward, groups in the pipeline's order, buckets
/// ascending. A message within a rank is a send and a receive with the rank itself as peer.
///
/// A (stage, replica) with an empty share of a micro-batch does nothing for it; all members of a group reduce, even if
/// they had no sample. To run without gradient sums (`no_sync`), pass a pipeline without groups.
///
/// @throws InvalidArgument if pipeline or layout are malformed, or the policy breaks its laws
/// @cost O(actions * log(ranks))
template <SchedulePolicy Policy>
[[nodiscard]] Program make_program(const Pipeline& pipeline, const BatchLayout& layout, const Policy& policy,
                                   Phase phase = Phase::kStep) {
  const BatchSplit split(pipeline, layout);
  const int stages = static_cast<int>(pipeline.stages.size());
  std::vector<std::vector<Turn>> turns;
  for (int s = 0; s < stages; ++s) {
    turns.push_back(policy.order(StageId(s), stages, layout.microbatches));
    detail::check_turns(turns.back(), static_cast<std::size_t>(s), layout.microbatches);
  }
  return detail::ProgramBuilder(pipeline, split, turns, phase).build();
}

}  // namespace autopar
