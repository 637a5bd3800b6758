#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transport.hpp>

/// An engine and a transport that write down what is asked of them, for tests of one rank without the others.
namespace autopar::testing {

using Events = std::vector<std::string>;

/// Nothing ends before it is waited for, or the test says so.
class RecordingWire {
 public:
  struct Ticket {
    int number = -1;  ///< in the order of the operations
  };
  explicit RecordingWire(Events& events, bool in_order = false) : events_(events), in_order_(in_order) {}

  void end(int number) { ended_.insert(number); }

  [[nodiscard]] static Rank rank() { return Rank(0); }
  [[nodiscard]] static int size() { return 2; }
  [[nodiscard]] bool in_order() const { return in_order_; }
  GroupId make_group(const std::vector<Rank>&) { return {0}; }
  Ticket send(const Buffer&, Rank, Tag tag) { return start("send " + std::to_string(tag.microbatch)); }
  Ticket receive(const Buffer&, Rank, Tag tag) { return start("receive " + std::to_string(tag.microbatch)); }
  Ticket all_reduce(const Buffer&, DType, GroupId group) { return start("all-reduce " + std::to_string(group.value)); }
  Ticket reduce_scatter(const Buffer&, DType, GroupId group) {
    return start("reduce-scatter " + std::to_string(group.value));
  }
  Ticket all_gather(const Buffer&, GroupId group) { return start("all-gather " + std::to_string(group.value)); }
  Ticket all_to_all(const Buffer&, GroupId group) { return start("all-to-all " + std::to_string(group.value)); }
  bool done(Ticket ticket) { return ended_.contains(ticket.number); }
  void wait(Ticket ticket) {
    events_.push_back("wait " + std::to_string(ticket.number));
    end(ticket.number);
  }

 private:
  Ticket start(std::string event) {
    events_.push_back(std::move(event));
    return {started_++};
  }

  Events& events_;
  const bool in_order_;
  int started_ = 0;
  std::set<int> ended_;
};
static_assert(Transport<RecordingWire>);

class RecordingEngine {
 public:
  explicit RecordingEngine(Events& events) : events_(events) {}

  void set_gate(ComputeGate*) {}
  void forward(const Action& action) { tell("forward", action.microbatch); }
  void backward(const Action& action) { tell("backward", action.microbatch); }
  Buffer pack(const Action& action) { return tell("pack", action.microbatch); }
  Buffer receive_buffer(const Action&) { return {}; }
  void accept(const Action& action, const Buffer&) { tell("accept", action.microbatch); }
  Buffer bucket(const Action&) { return {}; }
  DType bucket_dtype(const Action&) { return DType::kF32; }
  void reduced(const Action& action) { tell("reduced", action.bucket); }
  bool in_parts = false;  ///< whether it performs reductions itself
  [[nodiscard]] bool sums_parts(const Action&) const { return in_parts; }
  void sum_parts(const Action& action, PartExchange& exchange) {
    exchange.all_to_all(tell("sum parts", action.bucket));
    if (action.kind == ActionKind::kAllReduce) exchange.all_gather({});
  }

 private:
  Buffer tell(const char* what, int number) {
    events_.push_back(what + (" " + std::to_string(number)));
    return {};
  }
  Events& events_;
};
static_assert(PartSummingEngine<RecordingEngine>);

/// A program, and what a part of the executor did with it.
struct RecordedRun {
  explicit RecordedRun(std::vector<Action> program, bool in_order = false)
      : actions(std::move(program)), wire(events, in_order) {}
  Events take() { return std::exchange(events, {}); }

  Events events;
  std::vector<Action> actions;
  RecordingWire wire;
  RecordingEngine engine{events};
  autopar::detail::Progress::Trace trace;
  autopar::detail::Progress progress{trace};
};

}  // namespace autopar::testing
