#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// The durations that the simulator needs. `message` gets the send; messages that are not batched (replicated values,
/// partial sums) have no samples. `reduce` gets the action of one member: a reduction, or a gather at the start. A
/// compute action takes as long as its computation, or as the gathers and reductions within it if they take longer.
template <class C>
concept ProgramCosts = requires(const C& costs, StageId stage, std::int64_t samples, Rank from, const Action& action) {
  { costs.forward(stage, samples) } -> std::same_as<Seconds>;
  { costs.backward(stage, samples) } -> std::same_as<Seconds>;
  { costs.message(from, action) } -> std::same_as<Seconds>;
  { costs.reduce(action) } -> std::same_as<Seconds>;
};

/// Durations for programs with backwards in two parts.
template <class C>
concept SplitBackwardCosts = ProgramCosts<C> && requires(const C& costs, StageId stage, std::int64_t samples) {
  { costs.backward_input(stage, samples) } -> std::same_as<Seconds>;
  { costs.backward_weight(stage, samples) } -> std::same_as<Seconds>;
};

/// When one action was in progress; for a message the time of transfer, at sender and receiver.
struct Span {
  Seconds start{};
  Seconds end{};
};

/// The predicted timeline of a program.
struct Timeline {
  std::vector<std::vector<Span>> spans;  ///< [rank][position], as in the program
  std::vector<Seconds> busy;             ///< [rank] computing
  Seconds step{};                        ///< end of the last rank

  /// The idle share of a step, averaged over the ranks that compute at all, in [0, 1).
  [[nodiscard]] double idle_share() const {
    double sum = 0;
    int computing = 0;
    for (const Seconds time : busy) {
      sum += time.value();
      computing += time.value() > 0 ? 1 : 0;
    }
    return computing == 0 || step.value() <= 0 ? 0 : 1 - sum / (computing * step.value());
  }
};

namespace detail {

/// The most that actions hold at once from a forward to the last part of its backward.
/// @param size  of what one of them holds
template <class Actions, class Size>
[[nodiscard]] auto peak_held(const Actions& actions, const Size& size) {
  std::decay_t<decltype(size(actions.front()))> held{}, peak{};
  for (const auto& action : actions) {
    if (action.kind == ActionKind::kForward) held += size(action);
    peak = std::max(peak, held);
    if (gives_weight_gradients(action.kind)) held -= size(action);
  }
  return peak;
}

/// A program with messages linked to their sends and receives and compute actions numbered within each rank.
class LinkedProgram {
 public:
  struct Message {
    std::size_t from, to;                     // ranks
    std::size_t send_at = 0, receive_at = 0;  // positions
    std::int32_t compute = -1;  // compute action of the receiver that waits for it; -1: only the end of the step does
    bool half_ready = false;    // one of send and receive has been issued
  };
  struct ComputeAction {
    std::size_t at = 0;                          // position
    int missing = 0;                             // number of messages
    double ready_at = 0;                         // when all messages have arrived
    std::int32_t first_send = 0, last_send = 0;  // messages since the previous compute action
    std::vector<std::int32_t> receives;          // messages since the previous compute action
  };
  struct RankComputes {
    std::vector<ComputeAction> computes;           // with one extra entry at the end, for what follows the last
    std::vector<std::size_t> gathers, reductions;  // of the whole call
    std::vector<std::pair<std::size_t, std::int32_t>>
        within;  // collectives of compute actions: position, compute action
  };

  explicit LinkedProgram(const Program& program) : ranks(program.ranks.size()) {
    std::vector<std::vector<std::int32_t>> sent_to(ranks.size());  // in order of sender, then position
    for (std::size_t r = 0; r < ranks.size(); ++r) read_rank(program, r, sent_to);
    for (std::size_t r = 0; r < ranks.size(); ++r) join_receives(program, r, sent_to[r]);
  }

  std::vector<RankComputes> ranks;
  std::vector<Message> messages;

 private:
  void read_rank(const Program& program, std::size_t r, std::vector<std::vector<std::int32_t>>& sent_to) {
    auto& mine = ranks[r];
    const auto begin = [&] {  // a rank's sends are numbered in its order
      const auto next = static_cast<std::int32_t>(messages.size());
      mine.computes.push_back({.first_send = next, .last_send = next, .receives = {}});
    };
    begin();
    const auto& actions = program.ranks[r];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == ActionKind::kSend) {
        const auto id = static_cast<std::int32_t>(messages.size());
        messages.push_back({.from = r, .to = actions[i].peer.index(), .send_at = i});
        mine.computes.back().last_send = id + 1;
        sent_to[actions[i].peer.index()].push_back(id);
      } else if (is_collective(actions[i].kind)) {
        const auto compute = static_cast<std::int32_t>(mine.computes.size()) - 1;
        const bool gathers = actions[i].kind == ActionKind::kAllGather;
        if (actions[i].microbatch >= 0)
          mine.within.emplace_back(i, gathers ? compute : compute - 1);
        else
          (gathers ? mine.gathers : mine.reductions).push_back(i);
      } else if (is_compute(actions[i].kind)) {
        mine.computes.back().at = i;
        begin();
      }
    }
  }

  /// Gives each receive its message. Gives each compute action the messages that it waits for: those received before it
  /// for the same stage, micro-batch and direction.
  void join_receives(const Program& program, std::size_t r, const std::vector<std::int32_t>& sent) {
    std::vector<std::size_t> next(ranks.size() + 1, 0);  // by sender: position in `sent`
    for (const auto id : sent) ++next[messages[static_cast<std::size_t>(id)].from + 1];
    for (std::size_t s = 1; s < next.size(); ++s) next[s] += next[s - 1];

    using BySlot = std::vector<std::vector<std::int32_t>>;  // [2 * microbatch + flow]
    std::vector<std::pair<StageId, BySlot>> arrived;        // not yet used
    const auto slot = [&](const Action& action) -> std::vector<std::int32_t>& {
      auto stage = std::find_if(arrived.begin(), arrived.end(), [&](const auto& a) { return a.first == action.stage; });
      if (stage == arrived.end()) stage = arrived.insert(stage, {action.stage, {}});
      const auto index = 2 * static_cast<std::size_t>(action.microbatch) + (action.flow == Flow::kGradient ? 1 : 0);
      if (index >= stage->second.size()) stage->second.resize(index + 1);
      return stage->second[index];
    };
    std::size_t compute = 0;
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const Action& action = program.ranks[r][i];
      if (action.kind == ActionKind::kReceive) {
        const auto at = next[action.peer.index()]++;
        if (at >= sent.size() || messages[static_cast<std::size_t>(sent[at])].from != action.peer.index()) {
          throw InvalidArgument("simulate: rank " + std::to_string(r) + ": " + describe(action) + " meets no send");
        }
        messages[static_cast<std::size_t>(sent[at])].receive_at = i;
        ranks[r].computes[compute].receives.push_back(sent[at]);
        if (action.stage.valid()) slot(action).push_back(sent[at]);
      } else if (is_compute(action.kind)) {
        auto& awaited = slot(action);  // a weight backward has none: its input backward took them
        for (const auto id : awaited)
          messages[static_cast<std::size_t>(id)].compute = static_cast<std::int32_t>(compute);
        ranks[r].computes[compute].missing = static_cast<int>(awaited.size());
        awaited.clear();
        ++compute;
      }
    }
  }
};

template <ProgramCosts Costs>
class Simulation {
 public:
  Simulation(const Pipeline& pipeline, const Program& program, const Costs& costs)
      : pipeline_(pipeline), program_(program), costs_(costs), linked_(program), states_(program.ranks.size()) {
    timeline_.spans.resize(program.ranks.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) timeline_.spans[r].resize(program.ranks[r].size());
    timeline_.busy.resize(program.ranks.size());
  }

  /// Simulates compute actions and messages; call it first.
  void play() {
    const auto gathered = run_gathers();
    for (std::size_t r = 0; r < states_.size(); ++r) arrivals_.push({gathered[r], r});
    while (!arrivals_.empty()) {
      const auto [now, r] = arrivals_.top();
      arrivals_.pop();
      come_to_compute(r, now);
    }
    for (std::size_t r = 0; r < states_.size(); ++r) {
      if (states_[r].next + 1 < linked_.ranks[r].computes.size()) refuse(r);
      place_collectives_of_computes(r);
    }
  }

  /// The timeline with gradient reductions of these costs. May be called again with other costs.
  const Timeline& sum(const Costs& costs) {
    run_reductions(costs);
    timeline_.step = {};
    for (const auto& spans : timeline_.spans) {
      for (const Span& span : spans) timeline_.step = std::max(timeline_.step, span.end);
    }
    return timeline_;
  }

  [[nodiscard]] Timeline take() && { return std::move(timeline_); }

 private:
  struct LastCompute {
    StageId stage;
    double start = 0, end = 0;
    bool fills_buckets = false;  // computes weight gradients
  };
  struct State {
    std::size_t next = 0;    // compute action that the rank has reached
    std::size_t posted = 0;  // number of compute actions whose receives are posted
    bool waiting = false;    // for messages
    double since = 0;        // when it reached the compute action
    double egress_free = 0, ingress_free = 0;
    std::vector<LastCompute> last;  // of each stage, in the order of their first compute actions
  };

  void come_to_compute(std::size_t r, double now) {
    State& state = states_[r];
    auto& computes = linked_.ranks[r].computes;
    for (; state.posted < std::min(state.next + kReceivesAhead + 1, computes.size()); ++state.posted) {
      for (const auto id : computes[state.posted].receives) issue(id, now);
    }
    for (auto id = computes[state.next].first_send; id < computes[state.next].last_send; ++id) issue(id, now);
    state.waiting = true;
    state.since = now;
    start_if_ready(r);
  }

  /// Issues one end of a message. When both are issued, it is transferred as soon as the ports are free, in order of
  /// time.
  void issue(std::int32_t id, double now) {
    auto& message = linked_.messages[static_cast<std::size_t>(id)];
    if (!std::exchange(message.half_ready, true)) return;
    double start = now, end = now;
    if (message.from != message.to) {
      State& sender = states_[message.from];
      State& receiver = states_[message.to];
      start = std::max({now, sender.egress_free, receiver.ingress_free});
      const Action& send = program_.ranks[message.from][message.send_at];
      end = start + costs_.message(Rank::of(message.from), send).value();
      sender.egress_free = receiver.ingress_free = end;
    }
    const Span span{Seconds(start), Seconds(end)};
    timeline_.spans[message.from][message.send_at] = span;
    timeline_.spans[message.to][message.receive_at] = span;
    if (message.compute < 0) return;
    auto& compute = linked_.ranks[message.to].computes[static_cast<std::size_t>(message.compute)];
    --compute.missing;
    compute.ready_at = std::max(compute.ready_at, end);
    start_if_ready(message.to);
  }

  [[nodiscard]] bool is_ready(std::size_t r) const {
    const State& state = states_[r];
    const auto& computes = linked_.ranks[r].computes;
    return state.waiting && computes[state.next].missing == 0 && state.next + 1 < computes.size();
  }
  /// When a waiting rank has everything that its next compute action needs.
  [[nodiscard]] double ready_at(std::size_t r) const {
    return std::max(states_[r].since, linked_.ranks[r].computes[states_[r].next].ready_at);
  }

  /// Tensor shards that exchange values start together.
  void start_if_ready(std::size_t r) {
    if (!is_ready(r)) return;
    const Action& action = program_.ranks[r][linked_.ranks[r].computes[states_[r].next].at];
    const Mesh& mesh = pipeline_.stages[action.stage.index()];
    if (!exchanges_in_compute(mesh, action.kind)) return start(r, ready_at(r));
    const auto shards = mesh.tensor_group(*mesh.replica_of(Rank::of(r)));
    double last = 0;
    for (const Rank shard : shards) {
      const std::size_t other = shard.index();
      if (!is_ready(other)) return;
      const Action& same = program_.ranks[other][linked_.ranks[other].computes[states_[other].next].at];
      if (same.stage != action.stage || same.kind != action.kind || same.microbatch != action.microbatch) return;
      last = std::max(last, ready_at(other));
    }
    for (const Rank shard : shards) start(shard.index(), last);
  }

  void start(std::size_t r, double start) {
    State& state = states_[r];
    const auto& compute = linked_.ranks[r].computes[state.next];
    const Action& action = program_.ranks[r][compute.at];
    const Seconds duration = this->duration(action);
    const double end = start + duration.value();
    state.waiting = false;
    last_compute(state, action.stage) = {action.stage, start, end, gives_weight_gradients(action.kind)};
    timeline_.spans[r][compute.at] = {Seconds(start), Seconds(end)};
    timeline_.busy[r] += duration;
    ++state.next;
    arrivals_.push({end, r});
  }

  static LastCompute& last_compute(State& state, StageId stage) {
    for (LastCompute& last : state.last) {
      if (last.stage == stage) return last;
    }
    return state.last.emplace_back(LastCompute{stage});
  }

  [[nodiscard]] Seconds duration(const Action& action) const {
    const auto samples = action.samples.size();
    if (action.kind == ActionKind::kForward) return costs_.forward(action.stage, samples);
    if (action.kind == ActionKind::kBackward) return costs_.backward(action.stage, samples);
    if constexpr (SplitBackwardCosts<Costs>) {
      return action.kind == ActionKind::kBackwardInput ? costs_.backward_input(action.stage, samples)
                                                       : costs_.backward_weight(action.stage, samples);
    } else {
      throw InvalidArgument("simulate: " + describe(action) +
                            ": these costs say nothing of backwards in two parts; give them backward_input and "
                            "backward_weight");
    }
  }

  /// When a rank has filled bucket `b` of a group. Buckets fill evenly during the stage's last backward; buckets of
  /// parameters tied across stages, at the end of the rank's last compute action.
  static double filled(const State& state, const ReduceGroup& group, int b) {
    double at = 0;
    for (const LastCompute& last : state.last) {
      const double share = group.stage.valid() && last.fills_buckets ? (b + 1.0) / group.buckets : 1.0;
      if (group.stage.valid() && last.stage != group.stage) continue;
      at = std::max(at, last.start + share * (last.end - last.start));
    }
    return at;
  }

  /// Gathers at the start of the call, one after the other on each rank.
  /// @return [rank] when all are complete
  [[nodiscard]] std::vector<double> run_gathers() {
    std::vector<double> free_at(states_.size(), 0);
    std::vector<std::size_t> done(states_.size(), 0);
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      for (int b = 0; b < group.buckets && group.zero > 0 && group.zero < 3; ++b) {
        double start = 0;
        for (const Rank rank : group.ranks) {
          if (done[rank.index()] == linked_.ranks[rank.index()].gathers.size()) return free_at;  // a backward phase
          start = std::max(start, free_at[rank.index()]);
        }
        for (const Rank rank : group.ranks) {
          const auto at = linked_.ranks[rank.index()].gathers[done[rank.index()]++];
          const double end = start + costs_.reduce(program_.ranks[rank.index()][at]).value();
          timeline_.spans[rank.index()][at] = {Seconds(start), Seconds(end)};
          free_at[rank.index()] = end;
        }
      }
    }
    return free_at;
  }

  /// They run during the compute action or, on a rank without samples, some time before its next one.
  void place_collectives_of_computes(std::size_t r) {
    const auto& linked = linked_.ranks[r];
    for (const auto& [at, compute] : linked.within) {
      const bool is_there = compute >= 0 && static_cast<std::size_t>(compute) + 1 < linked.computes.size();
      if (is_there) timeline_.spans[r][at] = timeline_.spans[r][linked.computes[static_cast<std::size_t>(compute)].at];
    }
  }

  void run_reductions(const Costs& costs) {
    std::vector<std::size_t> done(states_.size(), 0);
    std::vector<double> free_at(states_.size(), 0);
    for (std::size_t g = 0; g < pipeline_.groups.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      for (int b = 0; b < group.buckets && group.zero < 2; ++b) {
        double start = 0;
        const Action* action = nullptr;
        for (const Rank rank : group.ranks) {
          const auto& reductions = linked_.ranks[rank.index()].reductions;
          if (done[rank.index()] == reductions.size()) return;  // a forward phase, or a program without reductions
          action = &program_.ranks[rank.index()][reductions[done[rank.index()]]];
          start = std::max({start, filled(states_[rank.index()], group, b), free_at[rank.index()]});
        }
        const double end = start + costs.reduce(*action).value();
        for (const Rank rank : group.ranks) {
          free_at[rank.index()] = end;
          timeline_.spans[rank.index()][linked_.ranks[rank.index()].reductions[done[rank.index()]++]] = {Seconds(start),
                                                                                                         Seconds(end)};
        }
      }
    }
  }

  [[noreturn]] void refuse(std::size_t r) const {
    const auto at = linked_.ranks[r].computes[states_[r].next].at;
    throw InvalidArgument("simulate: rank " + std::to_string(r) + " waits for ever at action " + std::to_string(at) +
                          ", " + describe(program_.ranks[r][at]) + "; validate the program first");
  }

  const Pipeline& pipeline_;
  const Program& program_;
  const Costs& costs_;
  LinkedProgram linked_;
  std::vector<State> states_;
  Timeline timeline_;
  using Arrival = std::pair<double, std::size_t>;  // time, rank
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
};

}  // namespace detail

/// Predicts a program's timeline under the executor:
///
/// - A rank runs one compute action after the other. An action waits only for its own messages.
/// - Messages are transferred asynchronously, one at a time out of a rank and one at a time into it, once both ends are
///   issued. The receive is issued kReceivesAhead compute actions before its use. Copies within a rank take no time.
/// - A stage's buckets are reduced one after the other as they fill during its last backward.
/// - Tensor shards that exchange values in an action start it together.
///
/// @pre `validate` accepts the program
/// @throws InvalidArgument if the program cannot complete
/// @cost O(actions + compute actions * log(ranks)); 64 ranks x 64 micro-batches in a few milliseconds
template <ProgramCosts Costs>
[[nodiscard]] Timeline simulate(const Pipeline& pipeline, const Program& program, const Costs& costs) {
  detail::Simulation<Costs> simulation(pipeline, program, costs);
  simulation.play();
  (void)simulation.sum(costs);
  return std::move(simulation).take();
}

/// The peak of what each rank holds for forwards whose backward, or its last part, is outstanding.
/// `size(stage, samples)` is what one forward leaves in memory, in any type that adds and compares (bytes, counts).
template <std::invocable<StageId, std::int64_t> Size>
[[nodiscard]] auto peak_activations(const Program& program, const Size& size) {
  const auto size_of = [&](const Action& action) { return size(action.stage, action.samples.size()); };
  std::vector<std::decay_t<std::invoke_result_t<const Size&, StageId, std::int64_t>>> peaks;
  for (const auto& actions : program.ranks) peaks.push_back(detail::peak_held(actions, size_of));
  return peaks;
}

}  // namespace autopar
