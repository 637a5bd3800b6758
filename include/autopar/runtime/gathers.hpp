#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// Shares of parameters on their way to the turns that need them: all of a call's at its start, or, within each turn, a few
/// buckets ahead of the operators. Always started in the program's order.
template <StageEngine Engine, Transport Wire>
class Gathers {
 public:
  Gathers(Engine& engine, Wire& wire, const std::vector<GroupId>& groups) : engine_(engine), wire_(wire), groups_(groups) {}

  // ---- for the whole call

  void start_for_call(const Action& action) { start(for_call_.emplace_back(Gather{&action})); }
  /// What turns of a stage need is there; of all stages if it is invalid.
  template <class Ended>
  void finish_for_call(StageId stage, const Ended& ended) {
    std::erase_if(for_call_, [&](Gather& gather) {
      const StageId of = gather.action->stage;
      if (of.valid() && stage.valid() && of != stage) return false;
      finish(gather, ended);
      return true;
    });
  }

  // ---- for one turn, which follows

  void add_to_turn(const Action& action) {
    of_turn_.push_back(Gather{&action});
    start_up_to(kGathersAhead);
  }
  [[nodiscard]] bool within_turn() const { return !of_turn_.empty(); }
  /// A turn is about to use a bucket: it is there afterwards, and the next ones are on their way.
  template <class Ended>
  void need(int group, int bucket, const Ended& ended) {
    for (std::size_t i = 0; i < of_turn_.size(); ++i) {
      Gather& gather = of_turn_[i];
      if (gather.action->group != group || gather.action->bucket != bucket) continue;
      start_up_to(i + 1 + kGathersAhead);
      if (!gather.finished) finish(gather, ended);
      return;
    }
  }
  /// The turn is over, or there is none on this rank, which only lends its shares: the others still need them.
  template <class Ended>
  void end_turn(const Ended& ended) {
    for (std::size_t i = 0; i < of_turn_.size(); ++i) {
      start_up_to(i + 1);
      if (!of_turn_[i].finished) finish(of_turn_[i], ended);
      release(*of_turn_[i].action);
    }
    of_turn_.clear();
  }

  void drain() noexcept {
    for (auto* gathers : {&for_call_, &of_turn_}) {
      for (Gather& gather : *gathers) {
        if (!gather.started || gather.finished) continue;
        try {
          wire_.wait(gather.ticket);
        } catch (const std::exception&) {
        }
      }
      gathers->clear();
    }
  }

 private:
  static constexpr std::size_t kGathersAhead = 1;

  struct Gather {
    const Action* action;
    Buffer buffer{};
    typename Wire::Ticket ticket{};
    bool started = false;
    std::chrono::steady_clock::time_point since{};
    bool finished = false;
  };

  void start(Gather& gather) {
    if constexpr (ShardingEngine<Engine>) {
      gather.since = std::chrono::steady_clock::now();
      gather.buffer = engine_.gathering(*gather.action);
      gather.ticket = wire_.all_gather(gather.buffer, groups_.at(static_cast<std::size_t>(gather.action->group)));
      gather.started = true;
    } else {
      throw InvalidArgument("this engine does not gather shares of parameters; choose ZeRO 0");
    }
  }
  void start_up_to(std::size_t count) {
    for (std::size_t i = 0; i < std::min(count, of_turn_.size()); ++i) {
      if (!of_turn_[i].started) start(of_turn_[i]);
    }
  }

  template <class Ended>
  void finish(Gather& gather, const Ended& ended) {
    wire_.wait(gather.ticket);
    gather.finished = true;
    gather.buffer = {};
    if constexpr (ShardingEngine<Engine>) engine_.gathered(*gather.action);
    ended(*gather.action, gather.since);
  }

  void release(const Action& action) {
    if constexpr (ShardingEngine<Engine>) engine_.release(action);
  }

  Engine& engine_;
  Wire& wire_;
  const std::vector<GroupId>& groups_;
  std::deque<Gather> for_call_, of_turn_;
};

}  // namespace autopar::detail
