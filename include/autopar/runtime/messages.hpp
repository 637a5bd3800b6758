#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transfer.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// The messages of a rank's program, including messages to the rank itself.
///
/// Sends start at once; their buffers are released when they are complete. Receives are posted kReceivesAhead compute
/// actions before their use, in the program's order. On a transport that is `in_order()`, they are posted where the
/// program has them. A received message is kept for the compute action that needs it, or is a result of the call.
template <StageEngine Engine, Transport Wire>
class Messages {
 public:
  /// @param actions  the rank's whole program. All parameters must outlive the object.
  Messages(Engine& engine, Wire& wire, const std::vector<Action>& actions, Progress& progress)
      : engine_(engine), wire_(wire), actions_(actions), progress_(progress), in_order_(wire.in_order()) {
    for (const Action& action : actions_) {
      if (action.kind == ActionKind::kForward || gives_input_gradients(action.kind)) readers_[slot(action)] = &action;
    }
  }

  void send(const Action& action) {
    Transfer<Wire> message{&action, engine_.pack(action), {}, !is_own(action), progress_.now()};
    if (!message.travels) {
      own_.push_back(std::move(message));
      return;
    }
    message.ticket = wire_.send(message.buffer, action.peer, tag(action));
    sent_.push_back(std::move(message));
  }
  /// Called at a receive of the program.
  void receive(const Action& action) {
    if (is_own(action))
      take_own(action);
    else if (in_order_)
      post(action);  // otherwise it was posted ahead
  }

  /// Called before the next compute action.
  void post_ahead() {
    if (in_order_) return;
    for (; posted_ < actions_.size(); ++posted_) {
      const Action& action = actions_[posted_];
      if (is_compute(action.kind)) {
        if (computes_passed_ == computes_served_ + static_cast<std::size_t>(kReceivesAhead)) return;
        ++computes_passed_;
      }
      if (action.kind == ActionKind::kReceive && !is_own(action)) post(action);
    }
  }
  /// Releases completed sends, and passes received results to the engine in the program's order. Does not wait.
  void settle() {
    std::erase_if(sent_, [this](const Transfer<Wire>& message) {
      if (!wire_.done(message.ticket)) return false;
      progress_.ended(*message.action, message.start);
      return true;
    });
    while (!results_.empty() && (!results_.front().travels || wire_.done(results_.front().ticket))) take_result();
  }
  /// Waits for the messages that a compute action needs and passes them to the engine. Their order does not depend on
  /// the schedule, so sums do not either. Called right before each compute action.
  void serve(const Action& compute) {
    ++computes_served_;
    if (compute.kind == ActionKind::kBackwardWeight) return;
    const auto found = arrivals_.find(slot(compute));
    if (found == arrivals_.end()) return;
    auto& arrivals = found->second;
    std::stable_sort(arrivals.begin(), arrivals.end(), [](const auto& a, const auto& b) {
      return std::pair(a.action->channel, a.action->peer) < std::pair(b.action->channel, b.action->peer);
    });
    for (auto& arrival : arrivals) take(arrival);
    arrivals_.erase(found);
  }

  /// Waits for all results and passes them to the engine, at the end of the program.
  void finish_received() {
    while (!results_.empty()) take_result();
  }
  /// Waits until all sends are complete.
  void finish_sent() {
    for (; !sent_.empty(); sent_.pop_front()) {
      const auto& message = sent_.front();
      progress_.turn_to(message.action);
      wire_.wait(message.ticket);
      progress_.ended(*message.action, message.start);
    }
  }

  void drain_received() noexcept {
    for (auto& [reader, arrivals] : arrivals_) drain(wire_, arrivals);
    drain(wire_, results_);
  }
  void drain_sent() noexcept { drain(wire_, sent_); }

 private:
  using Slot = std::tuple<StageId, int, Flow>;  // stage, micro-batch
  static Slot slot(const Action& action) { return {action.stage, action.microbatch, action.flow}; }
  static Tag tag(const Action& action) {
    return {action.channel, action.microbatch, static_cast<std::int32_t>(action.flow)};
  }
  [[nodiscard]] bool is_own(const Action& message) const { return message.peer == wire_.rank(); }

  /// Takes a message that this rank sent to itself.
  void take_own(const Action& action) {
    Transfer<Wire> message = std::move(own_.front());
    own_.pop_front();
    progress_.ended(*message.action, message.start);
    message.action = &action;
    message.start = progress_.now();
    file(std::move(message));
  }
  void post(const Action& action) {
    progress_.turn_to(&action);
    Transfer<Wire> message{&action, engine_.receive_buffer(action), {}, true, progress_.now()};
    message.ticket = wire_.receive(message.buffer, action.peer, tag(action));
    file(std::move(message));
  }
  void file(Transfer<Wire> message) {
    const Action& action = *message.action;
    const auto reader = readers_.find(slot(action));
    if (reader != readers_.end() && reader->second > &action)
      arrivals_[slot(action)].push_back(std::move(message));
    else
      results_.push_back(std::move(message));
  }

  void take_result() {
    take(results_.front());
    results_.pop_front();
  }
  void take(Transfer<Wire>& arrival) {
    progress_.turn_to(arrival.action);
    if (arrival.travels) wire_.wait(arrival.ticket);
    arrival.travels = false;
    engine_.accept(*arrival.action, arrival.buffer);
    arrival.buffer = {};
    progress_.ended(*arrival.action, arrival.start);
  }

  Engine& engine_;
  Wire& wire_;
  const std::vector<Action>& actions_;
  Progress& progress_;
  const bool in_order_;
  std::map<Slot, const Action*> readers_;                // compute actions that read messages
  std::map<Slot, std::deque<Transfer<Wire>>> arrivals_;  // received messages of these
  std::deque<Transfer<Wire>> results_;                   // received messages that no compute action reads
  std::deque<Transfer<Wire>> sent_, own_;
  std::size_t posted_ = 0;           // number of actions whose receives are posted
  std::size_t computes_passed_ = 0;  // compute actions among them
  std::size_t computes_served_ = 0;
};

}  // namespace autopar::detail
