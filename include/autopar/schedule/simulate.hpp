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

/// Durations for ranks whose computation and reductions delay each other while both run.
template <class C>
concept ContendingCosts = requires(const C& costs, StageId stage, Seconds seconds, const Action& action) {
  /// Seconds by which a message delays the computation of both its ranks, for each second that it takes.
  { costs.message_delay() } -> std::same_as<double>;
  /// A stage's last backward, which takes so long alone, while the stage's buckets are reduced as they fill.
  { costs.beside_reductions(stage, seconds) } -> std::same_as<Seconds>;
  /// A reduction by ranks that are still so long in this last backward.
  { costs.reduce_beside(action, seconds) } -> std::same_as<Seconds>;
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

/// The messages of a program, linked to their sends and receives and to the compute actions that wait for them.
class LinkedProgram {
 public:
  struct Message {
    std::size_t from, to;                     // ranks
    std::size_t send_at = 0, receive_at = 0;  // positions
    std::int32_t awaited_at =
        -1;                   // compute action of the receiver that waits for it; -1: only the end of the step does
    bool half_ready = false;  // one of send and receive has been issued
  };
  struct Links {                // of an action
    std::int32_t message = -1;  // of a send or receive
    int missing = 0;            // number of messages that a compute action waits for
    double ready_at = 0;        // when all of them have arrived
    bool is_last = false;       // no later compute action of its stage gives weight gradients
  };

  LinkedProgram(const Program& program, std::size_t stages) : links(program.ranks.size()) {
    std::vector<std::vector<std::int32_t>> sent_to(links.size());  // in order of sender, then position
    for (std::size_t r = 0; r < links.size(); ++r) {
      links[r].resize(program.ranks[r].size());
      for (std::size_t i = 0; i < links[r].size(); ++i) {
        const Action& action = program.ranks[r][i];
        microbatches_ = std::max(microbatches_, static_cast<std::size_t>(action.microbatch + 1));
        if (action.kind != ActionKind::kSend) continue;
        links[r][i].message = static_cast<std::int32_t>(messages.size());
        sent_to[action.peer.index()].push_back(links[r][i].message);
        messages.push_back({.from = r, .to = action.peer.index(), .send_at = i});
      }
    }
    awaited_.resize(2 * stages * microbatches_);
    for (std::size_t r = 0; r < links.size(); ++r) {
      join_receives(program.ranks[r], r, sent_to[r]);
      find_last(program.ranks[r], r);
    }
  }

  std::vector<std::vector<Links>> links;  // [rank][position]
  std::vector<Message> messages;

 private:
  /// Gives each receive its message, and each message the compute action of its stage, micro-batch and direction. A
  /// weight backward waits for none: its input backward does.
  void join_receives(const std::vector<Action>& actions, std::size_t r, const std::vector<std::int32_t>& sent) {
    std::vector<std::size_t> next(links.size() + 1, 0);  // by sender: position in `sent`
    for (const auto id : sent) ++next[message(id).from + 1];
    for (std::size_t s = 1; s < next.size(); ++s) next[s] += next[s - 1];
    std::ranges::fill(awaited_, -1);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (may_exchange(actions[i].kind)) awaited_at(actions[i]) = static_cast<std::int32_t>(i);
    }
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      if (action.kind != ActionKind::kReceive) continue;
      const auto at = next[action.peer.index()]++;
      if (at >= sent.size() || message(sent[at]).from != action.peer.index()) {
        throw InvalidArgument("simulate: rank " + std::to_string(r) + ": " + describe(action) + " meets no send");
      }
      links[r][i].message = sent[at];
      message(sent[at]).receive_at = i;
      const auto awaited = action.stage.valid() ? awaited_at(action) : -1;
      message(sent[at]).awaited_at = awaited;
      if (awaited >= 0) ++links[r][static_cast<std::size_t>(awaited)].missing;
    }
  }

  void find_last(const std::vector<Action>& actions, std::size_t r) {
    std::vector<StageId> seen;
    for (std::size_t i = actions.size(); i-- > 0;) {
      if (!gives_weight_gradients(actions[i].kind) || std::ranges::find(seen, actions[i].stage) != seen.end()) continue;
      seen.push_back(actions[i].stage);
      links[r][i].is_last = true;
    }
  }

  [[nodiscard]] Message& message(std::int32_t id) { return messages[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::int32_t& awaited_at(const Action& action) {
    const auto of_stage = action.stage.index() * microbatches_ + static_cast<std::size_t>(action.microbatch);
    return awaited_[2 * of_stage + (action.flow == Flow::kGradient ? 1 : 0)];
  }

  std::size_t microbatches_ = 0;
  std::vector<std::int32_t> awaited_;  // of one rank, by stage, micro-batch and direction: position, -1: none
};

template <ProgramCosts Costs>
class Simulation {
 public:
  Simulation(const Pipeline& pipeline, const Program& program, const Costs& costs)
      : pipeline_(pipeline),
        program_(program),
        costs_(costs),
        linked_(program, pipeline.stages.size()),
        states_(program.ranks.size()) {
    timeline_.spans.resize(program.ranks.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) timeline_.spans[r].resize(program.ranks[r].size());
    timeline_.busy.resize(program.ranks.size());
  }

  /// Simulates compute actions and messages; call it first.
  void play() {
    const auto gathered = run_collectives(true, costs_);
    for (std::size_t r = 0; r < states_.size(); ++r) arrivals_.push({gathered[r], r});
    while (!arrivals_.empty()) {
      const auto [now, r] = arrivals_.top();
      arrivals_.pop();
      come_to_compute(r, now);
    }
    for (std::size_t r = 0; r < states_.size(); ++r) {
      if (states_[r].at < program_.ranks[r].size()) refuse(r);
      place_collectives_of_computes(program_.ranks[r], timeline_.spans[r]);
    }
  }

  /// The timeline with gradient reductions of these costs. May be called again with other costs.
  const Timeline& sum(const Costs& costs) {
    (void)run_collectives(false, costs);
    timeline_.step = {};
    for (const auto& spans : timeline_.spans) {
      for (const Span& span : spans) timeline_.step = std::max(timeline_.step, span.end);
    }
    return timeline_;
  }

 private:
  struct LastCompute {
    StageId stage;
    double start = 0, end = 0;
    bool fills_buckets = false;  // computes weight gradients
  };
  struct State {
    std::size_t at = 0;         // compute action that the rank has reached
    std::size_t posted_to = 0;  // receives before this position are posted
    int computes_ahead = 0;     // number of compute actions from `at` to `posted_to`
    bool waiting = false;       // for messages
    double since = 0;           // when it reached the compute action
    double egress_free = 0, ingress_free = 0;
    double computes_until = 0;      // end of its latest compute action
    double delay = 0;               // by messages that began in this action: it adds to the next one
    std::vector<LastCompute> last;  // of each stage, in the order of their first compute actions
  };

  void come_to_compute(std::size_t r, double now) {
    State& state = states_[r];
    const auto& actions = program_.ranks[r];
    for (auto& i = state.posted_to; i < actions.size() && state.computes_ahead <= kReceivesAhead; ++i) {
      if (actions[i].kind == ActionKind::kReceive) issue(linked_.links[r][i].message, now);
      if (is_compute(actions[i].kind)) ++state.computes_ahead;
    }
    for (auto& i = state.at; i < actions.size() && !is_compute(actions[i].kind); ++i) {
      if (actions[i].kind == ActionKind::kSend) issue(linked_.links[r][i].message, now);
    }
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
      for (State* state : {&sender, &receiver})
        state->delay += message_delay() * std::max(0.0, std::min(end, state->computes_until) - start);
    }
    const Span span{Seconds(start), Seconds(end)};
    timeline_.spans[message.from][message.send_at] = span;
    timeline_.spans[message.to][message.receive_at] = span;
    if (message.awaited_at < 0) return;
    auto& awaiting = linked_.links[message.to][static_cast<std::size_t>(message.awaited_at)];
    --awaiting.missing;
    awaiting.ready_at = std::max(awaiting.ready_at, end);
    start_if_ready(message.to);
  }

  /// The compute action that a rank could start; null if it computes, waits or is at its end.
  [[nodiscard]] const Action* startable(std::size_t r) const {
    const State& state = states_[r];
    const bool is_ready =
        state.waiting && state.at < program_.ranks[r].size() && linked_.links[r][state.at].missing == 0;
    return is_ready ? &program_.ranks[r][state.at] : nullptr;
  }
  /// When a waiting rank has everything that its next compute action needs.
  [[nodiscard]] double ready_at(std::size_t r) const {
    return std::max(states_[r].since, linked_.links[r][states_[r].at].ready_at);
  }

  /// Tensor shards that exchange values start together.
  void start_if_ready(std::size_t r) {
    const Action* action = startable(r);
    if (action == nullptr) return;
    const Mesh& mesh = pipeline_.stages[action->stage.index()];
    if (!exchanges_in_compute(mesh, action->kind)) return start(r, ready_at(r));
    const auto shards = mesh.tensor_group(*mesh.replica_of(Rank::of(r)));
    double last = 0;
    for (const Rank shard : shards) {
      const Action* same = startable(shard.index());
      if (same == nullptr || same->stage != action->stage || same->kind != action->kind ||
          same->microbatch != action->microbatch)
        return;
      last = std::max(last, ready_at(shard.index()));
    }
    for (const Rank shard : shards) start(shard.index(), last);
  }

  void start(std::size_t r, double start) {
    State& state = states_[r];
    const Action& action = program_.ranks[r][state.at];
    Seconds duration = this->duration(action);
    if constexpr (ContendingCosts<Costs>) {
      if (linked_.links[r][state.at].is_last) duration = costs_.beside_reductions(action.stage, duration);
    }
    duration += Seconds(delay_by_messages(state, start, duration.value()));
    const double end = start + duration.value();
    state.computes_until = end;
    state.waiting = false;
    last_compute(state, action.stage) = {action.stage, start, end, gives_weight_gradients(action.kind)};
    timeline_.spans[r][state.at] = {Seconds(start), Seconds(end)};
    timeline_.busy[r] += duration;
    ++state.at;
    --state.computes_ahead;
    arrivals_.push({end, r});
  }

  [[nodiscard]] double message_delay() const {
    if constexpr (ContendingCosts<Costs>) return costs_.message_delay();
    return 0;
  }
  /// Of a compute action that starts: by messages under way, and what is left of earlier ones.
  double delay_by_messages(State& state, double start, double duration) {
    double beside = 0;
    for (const double until : {state.egress_free, state.ingress_free})
      beside += std::clamp(until - start, 0.0, duration);
    return message_delay() * beside + std::exchange(state.delay, 0);
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
  [[nodiscard]] double filled(Rank rank, const ReduceGroup& group, int b) const {
    double at = 0;
    for (const LastCompute& last : states_[rank.index()].last) {
      const double share = group.stage.valid() && last.fills_buckets ? (b + 1.0) / group.buckets : 1.0;
      if (group.stage.valid() && last.stage != group.stage) continue;
      at = std::max(at, last.start + share * (last.end - last.start));
    }
    return at;
  }

  /// Of the compute actions in which the members fill a group's buckets, the one that ends last.
  [[nodiscard]] LastCompute last_of(const ReduceGroup& group) const {
    LastCompute latest;
    for (const Rank rank : group.ranks) {
      for (const LastCompute& last : states_[rank.index()].last) {
        if (last.stage == group.stage && last.fills_buckets && last.end > latest.end) latest = last;
      }
    }
    return latest;
  }
  [[nodiscard]] static Seconds reduction(const Costs& costs, const Action& action, const LastCompute& last,
                                         double start) {
    if constexpr (ContendingCosts<Costs>) {
      if (last.end > start) return costs.reduce_beside(action, Seconds(last.end - start));
    }
    return costs.reduce(action);
  }

  /// Runs the gathers or the reductions of the whole call, one after the other on each rank.
  /// @return [rank] when all are complete
  std::vector<double> run_collectives(bool gathers, const Costs& costs) {
    std::vector<double> free_at(states_.size(), 0);
    std::vector<std::size_t> next(states_.size(), 0);  // position
    const auto seek = [&](Rank rank) {
      const auto& actions = program_.ranks[rank.index()];
      auto& at = next[rank.index()];
      while (at < actions.size() && (!is_collective(actions[at].kind) || actions[at].microbatch >= 0 ||
                                     (actions[at].kind == ActionKind::kAllGather) != gathers))
        ++at;
      return at < actions.size();
    };
    for (const ReduceGroup& group : pipeline_.groups) {
      const bool takes_part = gathers ? group.zero == 1 || group.zero == 2 : group.zero < 2;
      const LastCompute last = takes_part && !gathers ? last_of(group) : LastCompute{};
      for (int b = 0; b < group.buckets && takes_part; ++b) {
        double start = 0;
        for (const Rank rank : group.ranks) {
          if (!seek(rank)) return free_at;  // a phase without them, or a program without reductions
          start = std::max({start, gathers ? 0.0 : filled(rank, group, b), free_at[rank.index()]});
        }
        const Rank first = group.ranks.front();  // all members' actions take as long
        const Action& action = program_.ranks[first.index()][next[first.index()]];
        const Seconds end = Seconds(start) + reduction(costs, action, last, start);
        for (const Rank rank : group.ranks) {
          const auto at = next[rank.index()]++;
          timeline_.spans[rank.index()][at] = {Seconds(start), end};
          free_at[rank.index()] = end.value();
        }
      }
    }
    return free_at;
  }

  /// They run during the compute action or, on a rank without samples, some time before its next one.
  static void place_collectives_of_computes(const std::vector<Action>& actions, std::vector<Span>& spans) {
    const Span* compute = nullptr;
    const auto place = [&](std::size_t i, bool gathers) {
      if (is_compute(actions[i].kind)) compute = &spans[i];
      const bool is_one = is_collective(actions[i].kind) && actions[i].microbatch >= 0 &&
                          (actions[i].kind == ActionKind::kAllGather) == gathers;
      if (is_one && compute != nullptr) spans[i] = *compute;
    };
    for (std::size_t i = 0; i < actions.size(); ++i) place(i, false);
    compute = nullptr;
    for (std::size_t i = actions.size(); i-- > 0;) place(i, true);
  }

  [[noreturn]] void refuse(std::size_t r) const {
    const auto at = states_[r].at;
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
/// - A stage's buckets are reduced one after the other as they fill during its last backward. If the costs say so, both
///   then take longer, and messages delay the computation of both ranks (`ContendingCosts`).
/// - Tensor shards that exchange values in an action start it together.
///
/// @pre `validate` accepts the program
/// @throws InvalidArgument if the program cannot complete
/// @cost O(actions + compute actions * log(ranks)); 64 ranks x 64 micro-batches in a few milliseconds
template <ProgramCosts Costs>
[[nodiscard]] Timeline simulate(const Pipeline& pipeline, const Program& program, const Costs& costs) {
  detail::Simulation<Costs> simulation(pipeline, program, costs);
  simulation.play();
  return simulation.sum(costs);
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
