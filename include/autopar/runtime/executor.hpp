#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/gathers.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// An engine threw while it did an action. The cause is nested (std::rethrow_if_nested).
class ExecutionError : public Error {
 public:
  ExecutionError(const std::string& action, const std::string& cause) : Error(action + ": " + cause), action_(action) {}
  [[nodiscard]] const std::string& action() const { return action_; }

 private:
  std::string action_;
};

/// What a caller may add to an executor.
struct ExecutorHooks {
  using Clock = std::chrono::steady_clock;

  /// Told of every action as it ends, on the executing thread: a forward or backward while it computed, a message or a
  /// reduction from its start until it was seen to be over. Empty: no clock is read.
  std::function<void(const Action& action, Clock::time_point start, Clock::time_point end)> trace;
  /// Tells the other ranks that this one cannot go on (World::fail), so that nobody waits for it.
  std::function<void(std::string_view action, std::string_view message)> fail;
};

namespace detail {

/// One run of a rank's program.
template <StageEngine Engine, Transport Wire>
class ProgramRun {
 public:
  ProgramRun(Engine& engine, Wire& wire, const std::vector<GroupId>& groups, const ExecutorHooks& hooks,
             const std::vector<Action>& actions, const std::vector<GroupId>& gather_groups)
      : engine_(engine),
        wire_(wire),
        groups_(groups),
        hooks_(hooks),
        actions_(actions),
        in_order_(wire.in_order()),
        gathers_(engine, wire, gather_groups) {
    read_program();
  }
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  void run() {
    try {
      engine_.on_bucket_ready([this](int group, int bucket) { bucket_is_full(group, bucket); });
      if constexpr (ShardingEngine<Engine>) {
        engine_.on_parameters_needed([this](int group, int bucket) { need(group, bucket); });
      }
      for (const Action& action : actions_) {
        doing_ = compute_ = &action;
        execute(action);
      }
      finish();
      let_go_of_engine();
    } catch (...) {
      give_up();
    }
  }

 private:
  using Clock = ExecutorHooks::Clock;
  using Ticket = typename Wire::Ticket;

  struct Transfer {
    const Action* action;
    Buffer buffer;
    Ticket ticket{};
    bool travels = true;  // false: a copy within the rank, or not yet started
    Clock::time_point start{};
  };

  static bool is_backward(const Action& action) {
    return is_compute(action.kind) && action.kind != ActionKind::kForward;
  }
  static bool is_message(const Action& action) {
    return action.kind == ActionKind::kSend || action.kind == ActionKind::kReceive;
  }
  static bool is_sum(const Action& action) {
    return action.kind == ActionKind::kReduce || action.kind == ActionKind::kReduceScatter;
  }
  static bool is_of_compute(const Action& collective) { return collective.microbatch >= 0; }
  static bool is_filled_by(const Action& sum, const Action* compute) {
    return is_of_compute(sum) && compute != nullptr && compute->stage == sum.stage &&
           compute->microbatch == sum.microbatch;
  }
  using Slot = std::tuple<StageId, int, Flow>;  // stage, micro-batch
  static Slot slot(const Action& action) { return {action.stage, action.microbatch, action.flow}; }
  [[nodiscard]] Clock::time_point now() const { return hooks_.trace ? Clock::now() : Clock::time_point{}; }
  void trace(const Action& action, Clock::time_point start) const {
    if (hooks_.trace) hooks_.trace(action, start, Clock::now());
  }

  void read_program() {
    const Action* message = nullptr;
    const Action* last_compute = nullptr;  // that gives weight gradients
    for (const Action& action : actions_) {
      if (is_backward(action)) {
        ++backwards_left_;
        ++backwards_left_of_[action.stage];
      }
      if (gives_weight_gradients(action.kind)) last_compute = &action;
      if (is_sum(action)) {
        reductions_.push_back({&action, {}, {}, false});
        message_before_.push_back(message);
        filled_by_.push_back(is_filled_by(action, last_compute) ? last_compute : nullptr);
      }
      if (action.kind == ActionKind::kForward || gives_input_gradients(action.kind)) computes_[slot(action)] = &action;
      const bool gathers_for_compute = action.kind == ActionKind::kGather && is_of_compute(action);
      if (gathers_for_compute || (is_message(action) && action.peer != wire_.rank())) message = &action;
    }
    full_.assign(reductions_.size(), false);
  }

  void execute(const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        compute(action);
        break;
      case ActionKind::kSend:
        send(action);
        break;
      case ActionKind::kReceive:
        if (action.peer == wire_.rank())
          take_own(action);
        else if (in_order_)
          post(action);
        break;  // else it was posted ahead
      case ActionKind::kReduce:
      case ActionKind::kReduceScatter:
        bucket_is_full(action.group, action.bucket);
        break;
      case ActionKind::kGather:
        gather(action);
        break;
    }
  }

  /// What is gathered for a compute action stands right before it, or, on a rank that has no samples in it, alone.
  void gather(const Action& action) {
    if (!is_of_compute(action)) {
      gathers_.start_for_call(action);
      return;
    }
    gathers_.add_to_compute(action);
    const Action* next = &action + 1;
    const Action* const end = actions_.data() + actions_.size();
    const auto is_of_it = [&](ActionKind kind) {
      return next != end && next->kind == kind && next->stage == action.stage &&
             next->microbatch == action.microbatch && next->flow == action.flow;
    };
    if (is_of_it(ActionKind::kGather) && next->after > action.after)
      return;  // else another compute action's, right behind this one's
    const bool takes_part = next != end && is_compute(next->kind) && is_of_it(next->kind);
    if (takes_part) ++next;
    for (sums_of_compute_ = started_; is_of_it(ActionKind::kReduceScatter); ++next) ++sums_of_compute_;
    if (takes_part) {
      gather_ahead_of(0);
      return;
    }
    for (std::size_t i = 0; i < gathers_.of_compute(); ++i) {
      start_sums_before(i);
      gathers_.start_up_to(i + 1);
      gathers_.lend(i, ended());
    }
    end_gathering_compute();
  }

  /// The compute action is about to use a bucket: it is there afterwards, and the next one is on its way.
  void need(int group, int bucket) {
    const auto position = gathers_.position_of(group, bucket);
    if (!position) return;
    start_sums_before(*position);
    gathers_.start_up_to(*position + 1);
    gather_ahead_of(*position + 1);
    gathers_.wait_for(*position, ended());
    finish_sums_that_are_done();
  }
  void gather_ahead_of(std::size_t needed) {
    gathers_.start_ahead_up_to(std::min(needed + static_cast<std::size_t>(kGathersAhead), may_gather()));
  }

  /// How many of a compute action's gatherings may be issued before its next sum is.
  [[nodiscard]] std::size_t may_gather() const {
    return started_ < sums_of_compute_ ? static_cast<std::size_t>(reductions_[started_].action->after)
                                       : gathers_.of_compute();
  }
  /// Sums that come before a gathering: what has not been added to their buckets by now never will be.
  void start_sums_before(std::size_t gathering) {
    while (started_ < sums_of_compute_ && may_gather() <= gathering) start_next_sum_of_compute();
  }
  void start_next_sum_of_compute() {
    full_[started_] = true;
    start_full_sums();
  }
  void end_gathering_compute() {
    while (started_ < sums_of_compute_) start_next_sum_of_compute();
    sums_of_compute_ = 0;
    gathers_.end_compute(ended());
  }
  [[nodiscard]] auto ended() const {
    return [this](const Action& action, Clock::time_point start) { trace(action, start); };
  }

  /// What a compute action made has been sent before anything else is done: somebody may wait for it.
  void compute(const Action& action) {
    post_receives_ahead();
    drop_what_is_done();
    take_arrivals(action);
    doing_ = &action;
    gathers_.finish_for_call(action.stage, ended());
    const auto start = now();
    if (is_backward(action)) {
      --backwards_left_;
      --backwards_left_of_[action.stage];
    }
    run_compute(action);
    trace(action, start);
    if (gathers_.of_compute() > 0) end_gathering_compute();
    ++computes_done_;
  }

  /// Hands over what came for a compute action, in an order that depends on no schedule, so that sums do not either.
  void take_arrivals(const Action& compute) {
    if (compute.kind == ActionKind::kBackwardWeight) return;
    const auto found = arrivals_.find(slot(compute));
    if (found == arrivals_.end()) return;
    auto& arrivals = found->second;
    std::stable_sort(arrivals.begin(), arrivals.end(), [](const Transfer& a, const Transfer& b) {
      return std::pair(a.action->channel, a.action->peer) < std::pair(b.action->channel, b.action->peer);
    });
    for (Transfer& arrival : arrivals) take(arrival);
    arrivals_.erase(found);
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

  void send(const Action& action) {
    Transfer transfer{&action, engine_.pack(action), {}, action.peer != wire_.rank(), now()};
    if (!transfer.travels) {
      own_.push_back(std::move(transfer));
      return;
    }
    transfer.ticket = wire_.send(transfer.buffer, action.peer, tag(action));
    sends_.push_back(std::move(transfer));
  }

  /// A message of this rank to itself, sent before.
  void take_own(const Action& action) {
    Transfer transfer = std::move(own_.front());
    own_.pop_front();
    trace(*transfer.action, transfer.start);
    transfer.action = &action;
    transfer.start = now();
    file(std::move(transfer));
  }

  /// Keeps an arrival for the compute action that needs it, or among the results if no compute action does.
  void file(Transfer transfer) {
    const Action& action = *transfer.action;
    const auto compute = computes_.find(slot(action));
    if (compute != computes_.end() && compute->second > &action)
      arrivals_[slot(action)].push_back(std::move(transfer));
    else
      results_.push_back(std::move(transfer));
  }

  /// Waits for an arrival and hands it to the engine.
  void take(Transfer& arrival) {
    doing_ = arrival.action;
    if (arrival.travels) wire_.wait(arrival.ticket);
    arrival.travels = false;
    engine_.accept(*arrival.action, arrival.buffer);
    arrival.buffer = {};
    trace(*arrival.action, arrival.start);
  }

  void post(const Action& action) {
    doing_ = &action;
    Transfer transfer{&action, engine_.receive_buffer(action), {}, true, now()};
    transfer.ticket = wire_.receive(transfer.buffer, action.peer, tag(action));
    file(std::move(transfer));
  }

  void post_receives_ahead() {
    if (in_order_) return;
    for (; posted_ < actions_.size(); ++posted_) {
      const Action& action = actions_[posted_];
      if (is_compute(action.kind)) {
        if (computes_passed_ == computes_done_ + static_cast<std::size_t>(kReceivesAhead)) return;
        ++computes_passed_;
      }
      if (action.kind == ActionKind::kReceive && action.peer != wire_.rank()) post(action);
    }
  }

  /// Lets go of messages that have left, and hands over results that have come, in the program's order.
  void drop_what_is_done() {
    std::erase_if(sends_, [this](const Transfer& transfer) {
      if (!wire_.done(transfer.ticket)) return false;
      trace(*transfer.action, transfer.start);
      return true;
    });
    while (!results_.empty() && (!results_.front().travels || wire_.done(results_.front().ticket))) take_result();
    finish_sums_that_are_done();
  }

  void finish_sums_that_are_done() {
    std::vector<int> waiting;  // groups, whose later sums wait, too
    for (std::size_t i = 0; i < in_flight_.size();) {
      const int group = in_flight_[i]->action->group;
      if (std::find(waiting.begin(), waiting.end(), group) == waiting.end() && wire_.done(in_flight_[i]->ticket)) {
        finish_sum(i);
      } else {
        waiting.push_back(group);
        ++i;
      }
    }
  }

  void take_result() {
    take(results_.front());
    results_.pop_front();
  }

  /// Whether nothing that the program has before the reduction is still to be issued.
  [[nodiscard]] bool is_next(std::size_t reduction) const {
    return message_before_[reduction] == nullptr || message_before_[reduction] < compute_;
  }

  /// Whether a backward that may add to the bucket has still to begin.
  [[nodiscard]] bool is_awaited(std::size_t i) const {
    const Action& reduction = *reductions_[i].action;
    if (is_of_compute(reduction)) return filled_by_[i] == nullptr ? &reduction > compute_ : filled_by_[i] > compute_;
    if (!reduction.stage.valid()) return backwards_left_ > 0;
    const auto left = backwards_left_of_.find(reduction.stage);
    return left != backwards_left_of_.end() && left->second > 0;
  }

  /// From the engine while it runs the last backward, and from the program after it. Reductions start in the program's
  /// order, whichever bucket is full first, so that all members of a group agree.
  void bucket_is_full(int group, int bucket) {
    for (std::size_t i = started_; i < reductions_.size(); ++i) {
      const Action& action = *reductions_[i].action;
      if (action.group == group && action.bucket == bucket && !is_awaited(i)) full_[i] = true;
    }
    start_full_sums();
  }

  void start_full_sums() {
    while (started_ < reductions_.size() && full_[started_] && may_start(started_)) {
      Transfer& reduction = reductions_[started_];
      if (started_ < sums_of_compute_) gathers_.start_up_to(static_cast<std::size_t>(reduction.action->after));
      ++started_;
      start_sum(reduction);
      if (is_of_compute(*reduction.action)) make_room();
    }
  }

  /// A rank that sums into shares within its compute actions has no room for more whole buckets than this, and the one
  /// that is filled. All members issue what belongs to such a compute action in the same order. Sums of whole calls are
  /// not waited for: they may have started before the other members come to them.
  void make_room() {
    const auto of_compute = [](const Transfer* sum) { return is_of_compute(*sum->action); };
    while (std::count_if(in_flight_.begin(), in_flight_.end(), of_compute) > kSumsInFlight) {
      finish_sum(static_cast<std::size_t>(std::find_if(in_flight_.begin(), in_flight_.end(), of_compute) -
                                          in_flight_.begin()));
    }
  }

  /// On a device all members must issue the same operations in the same order.
  [[nodiscard]] bool may_start(std::size_t i) const { return !in_order_ || i < sums_of_compute_ || is_next(i); }

  void start_sum(Transfer& reduction) {
    const Action& action = *reduction.action;
    const GroupId group = groups_.at(static_cast<std::size_t>(action.group));
    reduction.start = now();
    reduction.buffer = engine_.bucket(action);
    const DType dtype = engine_.bucket_dtype(action);
    reduction.ticket = action.kind == ActionKind::kReduce ? wire_.all_reduce(reduction.buffer, dtype, group)
                                                          : wire_.reduce_scatter(reduction.buffer, dtype, group);
    reduction.travels = true;
    in_flight_.push_back(&reduction);
  }

  /// Sums of one bucket end in the program's order, so that what is added up of them has the same bits every time.
  void finish_sum(std::size_t i) {
    Transfer& reduction = *in_flight_[i];
    const Action* const outer = std::exchange(doing_, reduction.action);
    wire_.wait(reduction.ticket);
    reduction.travels = false;
    engine_.reduced(*reduction.action);
    reduction.buffer = {};
    reduction.ticket = {};  // which holds the buffer, too
    trace(*reduction.action, reduction.start);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    doing_ = outer;
  }

  void finish() {
    post_receives_ahead();
    gathers_.finish_for_call(StageId::none(), ended());
    while (!results_.empty()) take_result();
    while (!in_flight_.empty()) finish_sum(0);
    for (; !sends_.empty(); sends_.pop_front()) {
      doing_ = sends_.front().action;
      wire_.wait(sends_.front().ticket);
      trace(*doing_, sends_.front().start);
    }
  }

  void let_go_of_engine() {
    engine_.on_bucket_ready({});
    if constexpr (ShardingEngine<Engine>) engine_.on_parameters_needed({});
  }

  // ---- failure

  /// Called within a catch: tells the others, waits until nothing is under way any more, and throws what happened with
  /// the action.
  [[noreturn]] void give_up() {
    const std::string action = doing_ == nullptr ? "start of a program" : describe(*doing_);
    try {
      throw;
    } catch (const TransportError& error) {
      abandon(action, error.what());
      throw TransportError(std::string(error.what()) + " (at the " + action + ")", error.rank(), error.peer(),
                           error.action().empty() ? action : error.action(), error.code());
    } catch (const std::exception& error) {
      abandon(action, error.what());
      std::throw_with_nested(ExecutionError(action, error.what()));
    } catch (...) {
      abandon(action, "an exception that is no std::exception");
      std::throw_with_nested(ExecutionError(action, "an exception that is no std::exception"));
    }
  }

  void abandon(const std::string& action, const std::string& message) {
    let_go_of_engine();
    if (hooks_.fail) hooks_.fail(action, message);
    gathers_.drain();
    for (auto& [needed_by, arrivals] : arrivals_) drain(arrivals);
    drain(results_);
    drain(reductions_);
    drain(sends_);
  }

  /// The first cause is already on its way: further errors of the same failure say nothing new.
  template <class Transfers>
  void drain(Transfers& transfers) noexcept {
    for (Transfer& transfer : transfers) {
      if (!transfer.travels) continue;
      try {
        wire_.wait(transfer.ticket);
      } catch (const std::exception&) {
      }
    }
    transfers.clear();
  }

  static Tag tag(const Action& action) {
    return {action.channel, action.microbatch, static_cast<std::int32_t>(action.flow)};
  }

  Engine& engine_;
  Wire& wire_;
  const std::vector<GroupId>& groups_;
  const ExecutorHooks& hooks_;
  const std::vector<Action>& actions_;
  const bool in_order_;
  static constexpr int kSumsInFlight = 1;

  const Action* doing_ = nullptr;                  // for messages of errors
  const Action* compute_ = nullptr;                // of the program, now
  std::map<Slot, const Action*> computes_;         // that take arrivals
  std::map<Slot, std::deque<Transfer>> arrivals_;  // for those compute actions
  std::deque<Transfer> results_;                   // received for no compute action
  std::deque<Transfer> sends_, own_;
  std::deque<Transfer> reductions_;
  std::vector<bool> full_;  // by position in reductions_
  std::vector<const Action*>
      filled_by_;  // likewise, of sums within compute actions: the compute action; null on a rank without samples
  std::vector<const Action*> message_before_;  // likewise: the program's last message, or gathering, before it
  std::size_t started_ = 0;                    // reductions
  std::size_t sums_of_compute_ =
      0;  // up to there they are of the compute action that gathers now; 0: none does, or it sums nothing
  std::deque<Transfer*> in_flight_;  // those of them that have not ended
  Gathers<Engine, Wire> gathers_;
  std::size_t posted_ = 0;           // actions whose receive is posted
  std::size_t computes_passed_ = 0;  // among them
  std::size_t computes_done_ = 0;
  int backwards_left_ = 0;
  std::map<StageId, int> backwards_left_of_;
};

}  // namespace detail

/// Runs this rank's part of a program: the engine computes, the transport moves bytes beside it.
///
/// Receives are posted kReceivesAhead compute actions before their use, in the program's order; an action waits only
/// for its own messages, and for the parameters that it is about to use; gradient buckets are summed in the program's
/// order while the last backward of their stage fills them, or, into shares, every one. On a transport that is
/// `in_order()`, messages and sums are issued exactly in the program's order instead: a sum starts within that backward
/// only if no message comes before it. `run` returns when everything has ended. The executor owns no thread.
/// Collective: every rank runs its part of the same program, with the same groups.
///
/// If the engine throws, `run` calls hooks.fail, waits until nothing is under way and throws ExecutionError with the
/// action; if the transport does, TransportError.
template <StageEngine Engine, Transport Wire>
class Executor {
 public:
  /// @param groups  for each of Pipeline::groups, what Transport::make_group gave
  /// @param gather_groups  likewise, for gathering, which within compute actions has no fixed order with sums: other
  /// ids than any of
  ///                       `groups` where a group has ZeRO level 3; empty: the same
  Executor(Engine& engine, Wire& wire, std::vector<GroupId> groups, ExecutorHooks hooks = {},
           std::vector<GroupId> gather_groups = {})
      : engine_(engine),
        wire_(wire),
        groups_(std::move(groups)),
        hooks_(std::move(hooks)),
        gather_groups_(gather_groups.empty() ? groups_ : std::move(gather_groups)) {}

  /// @pre the program these actions come from was accepted by `validate`
  void run(const std::vector<Action>& actions) {
    detail::ProgramRun<Engine, Wire>(engine_, wire_, groups_, hooks_, actions, gather_groups_).run();
  }

 private:
  Engine& engine_;
  Wire& wire_;
  std::vector<GroupId> groups_;
  ExecutorHooks hooks_;
  std::vector<GroupId> gather_groups_;
};

}  // namespace autopar
