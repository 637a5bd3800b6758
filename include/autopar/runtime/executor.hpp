#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/compute_gate.hpp>
#include <autopar/runtime/exchanges.hpp>
#include <autopar/runtime/gathers.hpp>
#include <autopar/runtime/messages.hpp>
#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/reductions.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// An engine threw during an action. The cause is nested (std::rethrow_if_nested).
class ExecutionError : public Error {
 public:
  ExecutionError(const std::string& action, const std::string& cause) : Error(action + ": " + cause), action_(action) {}
  [[nodiscard]] const std::string& action() const { return action_; }

 private:
  std::string action_;
};

/// Callbacks of an executor.
struct ExecutorHooks {
  using Clock = std::chrono::steady_clock;

  /// Called when an action ends, on one thread at a time (see StageEngine). The times span the computation of a forward
  /// or backward; for a message or reduction, its start until its completion was noticed. If empty, no clock is read.
  std::function<void(const Action& action, Clock::time_point start, Clock::time_point end)> trace;
  /// Tells the other ranks that this one cannot continue (World::fail), so that no rank waits for it.
  std::function<void(std::string_view action, std::string_view message)> fail;
  /// The message for an engine's exception. If empty: the exception's what().
  std::function<std::string(const std::exception& error)> message{};
};

/// The groups that an executor's collectives use, as Transport::make_group returned them.
struct ExecutorGroups {
  std::vector<GroupId> sums;  ///< for reductions, one for each of Pipeline::groups
  /// For gathers, one for each of Pipeline::groups. Within compute actions gathers and reductions have no fixed order,
  /// so groups with ZeRO level 3 need other ids than those in `sums`. Empty: `sums`.
  std::vector<GroupId> gathers{};
  /// By stage, the tensor shards of this rank's replica. Only for stages that this rank runs and that have several
  /// shards.
  std::vector<GroupId> tensor{};
};

namespace detail {

/// One run of a rank's program: executes its actions and coordinates messages, reductions and gathers.
template <StageEngine Engine, Transport Wire>
// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): nobody destroys it as a ComputeGate
class ProgramRun final : private ComputeGate {
 public:
  ProgramRun(Engine& engine, Wire& wire, const ExecutorGroups& groups, const ExecutorHooks& hooks,
             const std::vector<Action>& actions)
      : engine_(engine),
        hooks_(hooks),
        actions_(actions),
        progress_(hooks.trace),
        messages_(engine, wire, actions, progress_),
        exchanges_(wire, groups.tensor),
        reductions_(engine, wire, groups.sums, actions, exchanges_, progress_),
        gathers_(engine, wire, groups.gathers.empty() ? groups.sums : groups.gathers, progress_) {}
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  void run() {
    try {
      engine_.set_gate(this);
      for (const Action& action : actions_) {
        progress_.reach(action);
        execute(action);
      }
      finish();
      engine_.set_gate(nullptr);
    } catch (...) {
      give_up();
    }
  }

 private:
  void execute(const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        compute(action);
        break;
      case ActionKind::kSend:
        messages_.send(action);
        break;
      case ActionKind::kReceive:
        messages_.receive(action);
        break;
      case ActionKind::kAllReduce:
      case ActionKind::kReduceScatter:
        gradients_ready(action.group, action.bucket);
        break;
      case ActionKind::kAllGather:
        if (action.microbatch < 0)
          gathers_.start_for_call(action);
        else
          gather_for_compute(action);
        break;
    }
  }

  /// Results of a compute action are sent before the next one runs, because another rank may wait for them.
  void compute(const Action& action) {
    messages_.post_ahead();
    messages_.settle();
    reductions_.settle();
    messages_.serve(action);
    progress_.turn_to(&action);
    gathers_.finish_for_call(action.stage);
    const auto start = progress_.now();
    reductions_.begin_compute(action);
    run_compute(action);
    progress_.ended(action, start);
    if (gathers_.of_compute() > 0) end_gathering_compute();
  }
  void run_compute(const Action& action) {
    if (action.kind == ActionKind::kForward) {
      engine_.forward(action);
    } else if (action.kind == ActionKind::kBackward) {
      engine_.backward(action);
    } else if constexpr (SplitBackwardEngine<Engine>) {
      if (action.kind == ActionKind::kBackwardInput)
        engine_.backward_input(action);
      else
        engine_.backward_weight(action);
    } else {
      throw InvalidArgument("this engine does not run backwards in two parts; choose a schedule that keeps them whole");
    }
  }

  void finish() {
    messages_.post_ahead();
    gathers_.finish_for_call(StageId::none());
    messages_.finish_received();
    reductions_.finish();
    messages_.finish_sent();
  }

  // ---- called by the engine within a compute action

  void unshard(int group, int bucket) override {
    const auto position = gathers_.position_of(group, bucket);
    if (!position) return;
    start_sums_before(*position);
    gathers_.start_up_to(*position + 1);
    gather_ahead_of(*position + 1);
    gathers_.wait_for(*position);
    reductions_.settle();
  }
  void reshard(int group, int bucket) override { gathers_.reshard(group, bucket); }
  void gradients_ready(int group, int bucket) override {
    reductions_.fill(group, bucket);
    start_full_sums();
  }
  void exchange(Exchange kind, const Buffer& buffer, DType dtype, const std::function<void()>& meanwhile) override {
    exchanges_.run(*progress_.busy_with(), kind, buffer, dtype, meanwhile);
  }
  /// The sums of a compute action that gathers must follow the gathers that precede them in the program.
  void start_full_sums() {
    while (const Action* sum = reductions_.startable()) {
      gathers_.start_up_to(static_cast<std::size_t>(sum->after));
      reductions_.start_next();
    }
  }

  // ---- compute actions that gather: all members issue gathers and sums in one order

  /// The gathers for a compute action come right before it in the program. On a rank without samples in it, they come
  /// without it.
  void gather_for_compute(const Action& action) {
    gathers_.add_to_compute(action);
    const Action* next = &action + 1;
    const Action* const end = actions_.data() + actions_.size();
    const auto is_of_it = [&](ActionKind kind) {
      return next != end && next->kind == kind && next->stage == action.stage &&
             next->microbatch == action.microbatch && next->flow == action.flow;
    };
    if (is_of_it(ActionKind::kAllGather) && next->after > action.after)
      return;  // otherwise the gather belongs to another compute action, right after this one
    const bool takes_part = next != end && is_compute(next->kind) && is_of_it(next->kind);
    if (takes_part) ++next;
    std::size_t sums = 0;
    for (; is_of_it(ActionKind::kReduceScatter); ++next) ++sums;
    reductions_.begin_gathering_compute(sums);
    if (takes_part) {
      gather_ahead_of(0);
      return;
    }
    for (std::size_t i = 0; i < gathers_.of_compute(); ++i) {
      start_sums_before(i);
      gathers_.start_up_to(i + 1);
      gathers_.lend(i);
    }
    end_gathering_compute();
  }
  void end_gathering_compute() {
    while (reductions_.next_of_compute() != nullptr) start_next_sum_of_compute();
    reductions_.end_gathering_compute();
    gathers_.end_compute();
  }

  void gather_ahead_of(std::size_t needed) {
    gathers_.start_ahead_up_to(std::min(needed + static_cast<std::size_t>(kGathersAhead), may_gather()));
  }
  /// How many of the gathers may be issued before the next sum.
  [[nodiscard]] std::size_t may_gather() const {
    const Action* const sum = reductions_.next_of_compute();
    return sum == nullptr ? gathers_.of_compute() : static_cast<std::size_t>(sum->after);
  }
  void start_sums_before(std::size_t gathering) {
    while (reductions_.next_of_compute() != nullptr && may_gather() <= gathering) start_next_sum_of_compute();
  }
  void start_next_sum_of_compute() {
    reductions_.fill_next_of_compute();
    start_full_sums();
  }

  // ---- failure

  /// Called within a catch: tells the other ranks, waits until nothing is in flight, and throws an error that names the
  /// action.
  [[noreturn]] void give_up() {
    const Action* const at = progress_.busy_with();
    const std::string action = at == nullptr ? "start of a program" : describe(*at);
    try {
      throw;
    } catch (const TransportError& error) {
      abandon(action, error.what());
      throw TransportError(std::string(error.what()) + " (at the " + action + ")", error.rank(), error.peer(),
                           error.action().empty() ? action : error.action(), error.code());
    } catch (const std::exception& error) {
      const std::string message = hooks_.message ? hooks_.message(error) : error.what();
      abandon(action, message);
      std::throw_with_nested(ExecutionError(action, message));
    } catch (...) {
      abandon(action, "an exception that is no std::exception");
      std::throw_with_nested(ExecutionError(action, "an exception that is no std::exception"));
    }
  }
  void abandon(const std::string& action, const std::string& message) {
    engine_.set_gate(nullptr);
    if (hooks_.fail) hooks_.fail(action, message);
    exchanges_.drain();
    gathers_.drain();
    messages_.drain_received();
    reductions_.drain();
    messages_.drain_sent();
  }

  Engine& engine_;
  const ExecutorHooks& hooks_;
  const std::vector<Action>& actions_;
  Progress progress_;
  Messages<Engine, Wire> messages_;
  Exchanges<Wire> exchanges_;
  Reductions<Engine, Wire> reductions_;
  Gathers<Engine, Wire> gathers_;
};

}  // namespace detail

/// Runs this rank's part of a program: the engine computes while the transport moves data.
///
/// Receives are posted kReceivesAhead compute actions before their use, in the program's order. An action waits only
/// for its own messages and for the parameters that it uses. Gradient buckets are reduced in the program's order:
/// during the last backward of their stage, or, if they are reduced into shards, during every backward.
///
/// On a transport that is `in_order()`, messages and reductions are issued exactly in the program's order. A reduction
/// then starts within a backward only if no message precedes it. `run` returns when everything is complete. The
/// executor owns no thread. Collective: every rank runs its part of the same program, with the same groups.
///
/// @throws ExecutionError, with the action, if the engine throws; after hooks.fail was called and nothing is in flight
/// @throws TransportError if the transport fails
template <StageEngine Engine, Transport Wire>
class Executor {
 public:
  Executor(Engine& engine, Wire& wire, ExecutorGroups groups, ExecutorHooks hooks = {})
      : engine_(engine), wire_(wire), groups_(std::move(groups)), hooks_(std::move(hooks)) {}

  /// @pre `validate` accepted the program that these actions are part of
  void run(const std::vector<Action>& actions) {
    detail::ProgramRun<Engine, Wire>(engine_, wire_, groups_, hooks_, actions).run();
  }

 private:
  Engine& engine_;
  Wire& wire_;
  ExecutorGroups groups_;
  ExecutorHooks hooks_;
};

}  // namespace autopar
