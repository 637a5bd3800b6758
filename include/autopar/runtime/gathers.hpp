#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// Shares of parameters on their way to the turns that need them: all of a call's at its start, or, within each turn,
/// as far as they are asked for. Always started in the program's order.
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

  void add_to_turn(const Action& action) { of_turn_.push_back(Gather{&action}); }
  [[nodiscard]] std::size_t of_turn() const { return of_turn_.size(); }
  [[nodiscard]] bool begins_with(const Action& action) const { return *of_turn_.front().action == action; }
  /// Where the turn gathers a bucket; nowhere if it does not.
  [[nodiscard]] std::optional<std::size_t> position_of(int group, int bucket) const {
    for (std::size_t i = 0; i < of_turn_.size(); ++i) {
      if (of_turn_[i].action->group == group && of_turn_[i].action->bucket == bucket) return i;
    }
    return std::nullopt;
  }
  /// The first so many are on their way, or there.
  void start_up_to(std::size_t count) {
    for (; started_ < std::min(count, of_turn_.size()); ++started_)
      start(of_turn_[started_]);
  }
  /// A turn is about to use a bucket: it is there afterwards. @pre it was started
  template <class Ended>
  void wait_for(std::size_t position, const Ended& ended) {
    if (!of_turn_[position].finished) finish(of_turn_[position], ended);
  }
  /// A rank that has no turn lends its share: the others need it. @pre it was started
  template <class Ended>
  void lend(std::size_t position, const Ended& ended) {
    wait_for(position, ended);
    release(of_turn_[position]);
  }
  /// The turn is over.
  template <class Ended>
  void end_turn(const Ended& ended) {
    for (std::size_t i = 0; i < of_turn_.size(); ++i) {
      start_up_to(i + 1);
      wait_for(i, ended);
      release(of_turn_[i]);
    }
    of_turn_.clear();
    started_ = 0;
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
  struct Gather {
    const Action* action;
    Buffer buffer{};
    typename Wire::Ticket ticket{};
    bool started = false;
    std::chrono::steady_clock::time_point since{};
    bool finished = false, released = false;
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
  template <class Ended>
  void finish(Gather& gather, const Ended& ended) {
    wire_.wait(gather.ticket);
    gather.finished = true;
    gather.buffer = {};
    if constexpr (ShardingEngine<Engine>) engine_.gathered(*gather.action);
    ended(*gather.action, gather.since);
  }

  void release(Gather& gather) {
    if (std::exchange(gather.released, true)) return;
    if constexpr (ShardingEngine<Engine>) engine_.release(*gather.action);
  }

  Engine& engine_;
  Wire& wire_;
  const std::vector<GroupId>& groups_;
  std::deque<Gather> for_call_, of_turn_;
  std::size_t started_ = 0;  // of the turn's
};

}  // namespace autopar::detail
