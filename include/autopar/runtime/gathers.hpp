#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transfer.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// Shards of parameters on their way to the compute actions that need them: all of a call's at its start, or, within
/// each compute action, as far as they are asked for. Always started in the program's order. What is gathered for a
/// compute action the engine reshards once for each gathering, when the compute action says so or when it is over; what
/// is gathered for the call stays.
template <StageEngine Engine, Transport Wire>
class Gathers {
 public:
  /// @param groups  like those of reductions, for gathering
  Gathers(Engine& engine, Wire& wire, const std::vector<GroupId>& groups, Progress& progress)
      : engine_(engine), wire_(wire), groups_(groups), progress_(progress) {}

  // ---- for the whole call

  void start_for_call(const Action& action) { start(for_call_.emplace_back(Gather{{&action}})); }
  /// What compute actions of a stage need is there; of all stages if it is invalid.
  void finish_for_call(StageId stage) {
    std::erase_if(for_call_, [&](Gather& gather) {
      const StageId of = gather.action->stage;
      if (of.valid() && stage.valid() && of != stage) return false;
      finish(gather);
      return true;
    });
  }

  // ---- for one compute action, which follows

  void add_to_compute(const Action& action) {
    positions_[{action.group, action.bucket}].push_back(of_compute_.size());
    of_compute_.push_back(Gather{{&action}});
  }
  [[nodiscard]] std::size_t of_compute() const { return of_compute_.size(); }
  /// Where the compute action gathers a bucket that it needs now: where it was gathered last if it is still there, or
  /// else the next time; nowhere if it does not gather it.
  [[nodiscard]] std::optional<std::size_t> position_of(int group, int bucket) const {
    const auto found = positions_.find({group, bucket});
    if (found == positions_.end()) return std::nullopt;
    const auto& at = found->second;
    const auto next = std::find_if(at.begin(), at.end(), [&](std::size_t i) { return !of_compute_[i].finished; });
    if (next == at.begin()) return *next;
    return next == at.end() || !of_compute_[*std::prev(next)].resharded ? *std::prev(next) : *next;
  }
  /// The first so many are on their way, or there.
  void start_up_to(std::size_t count) {
    for (; started_ < std::min(count, of_compute_.size()); ++started_) start(of_compute_[started_]);
  }
  /// Likewise, as far as what was gathered before was let go of.
  void start_ahead_up_to(std::size_t count) {
    while (started_ < std::min(count, of_compute_.size()) && !is_still_used(started_)) start_up_to(started_ + 1);
  }
  /// A compute action is about to use a bucket: it is there afterwards. @pre it was started
  void wait_for(std::size_t position) {
    if (!of_compute_[position].finished) finish(of_compute_[position]);
  }
  /// The compute action does not use a bucket for now: of what is there of it, the first goes. Ignored if nothing is.
  void reshard(int group, int bucket) {
    const auto found = positions_.find({group, bucket});
    if (found == positions_.end()) return;
    for (const std::size_t i : found->second) {
      Gather& gather = of_compute_[i];
      if (!gather.finished || gather.resharded) continue;
      gather.resharded = true;
      if constexpr (ShardingEngine<Engine>) engine_.reshard(*gather.action);
      return;
    }
  }
  /// A rank that has no compute action lends its shard: the others need it. @pre it was started
  void lend(std::size_t position) {
    wait_for(position);
    reshard(of_compute_[position].action->group, of_compute_[position].action->bucket);
  }
  /// The compute action is over.
  void end_compute() {
    for (std::size_t i = 0; i < of_compute_.size(); ++i) {
      start_up_to(i + 1);
      lend(i);
    }
    of_compute_.clear();
    positions_.clear();
    started_ = 0;
  }

  void drain() noexcept {
    for (auto* gathers : {&for_call_, &of_compute_}) detail::drain(wire_, *gathers);
    positions_.clear();
  }

 private:
  struct Gather : Transfer<Wire> {
    bool finished = false, resharded = false;
  };

  /// Whether a bucket that is to be gathered was so before, and may be read still.
  [[nodiscard]] bool is_still_used(std::size_t position) const {
    const Action& action = *of_compute_[position].action;
    const auto& at = positions_.at({action.group, action.bucket});
    const auto here = std::find(at.begin(), at.end(), position);
    return here != at.begin() && !of_compute_[*std::prev(here)].resharded;
  }

  void start(Gather& gather) {
    if constexpr (ShardingEngine<Engine>) {
      gather.start = progress_.now();
      gather.buffer = engine_.gathering(*gather.action);
      gather.ticket = wire_.all_gather(gather.buffer, groups_.at(static_cast<std::size_t>(gather.action->group)));
      gather.travels = true;
    } else {
      throw InvalidArgument("this engine does not gather shards of parameters; choose ZeRO 0");
    }
  }
  void finish(Gather& gather) {
    wire_.wait(gather.ticket);
    gather.travels = false;
    gather.finished = true;
    gather.buffer = {};
    if constexpr (ShardingEngine<Engine>) engine_.gathered(*gather.action);
    progress_.ended(*gather.action, gather.start);
  }

  Engine& engine_;
  Wire& wire_;
  const std::vector<GroupId>& groups_;
  Progress& progress_;
  std::deque<Gather> for_call_, of_compute_;
  std::map<std::pair<int, int>, std::vector<std::size_t>> positions_;  // in of_compute_, ascending: by group and bucket
  std::size_t started_ = 0;                                            // of the compute action's
};

}  // namespace autopar::detail
