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

/// Gathers parameter shards for compute actions: all of a call's at its start, or on request within each compute
/// action. Gathers always start in the program's order. Parameters gathered for the call stay unsharded. Those gathered
/// for a compute action are resharded once for each gather, when the compute action asks for it or ends.
template <StageEngine Engine, Transport Wire>
class Gathers {
 public:
  /// @param groups  for gathering, one for each of Pipeline::groups
  Gathers(Engine& engine, Wire& wire, const std::vector<GroupId>& groups, Progress& progress)
      : engine_(engine), wire_(wire), groups_(groups), progress_(progress) {}

  // ---- gathers for the whole call

  void start_for_call(const Action& action) { start(for_call_.emplace_back(Gather{{&action}})); }
  /// Waits for the parameters that compute actions of a stage need; of all stages if `stage` is invalid.
  void finish_for_call(StageId stage) {
    std::erase_if(for_call_, [&](Gather& gather) {
      const StageId of = gather.action->stage;
      if (of.valid() && stage.valid() && of != stage) return false;
      finish(gather);
      return true;
    });
  }

  // ---- gathers for the next compute action

  void add_to_compute(const Action& action) {
    positions_[{action.group, action.bucket}].push_back(of_compute_.size());
    of_compute_.push_back(Gather{{&action}});
  }
  [[nodiscard]] std::size_t of_compute() const { return of_compute_.size(); }
  /// The gather that serves the compute action's next use of a bucket: the last one if the bucket is still unsharded,
  /// otherwise the next one. Empty if the compute action does not gather the bucket.
  [[nodiscard]] std::optional<std::size_t> position_of(int group, int bucket) const {
    const auto found = positions_.find({group, bucket});
    if (found == positions_.end()) return std::nullopt;
    const auto& at = found->second;
    const auto next = std::find_if(at.begin(), at.end(), [&](std::size_t i) { return !of_compute_[i].finished; });
    if (next == at.begin()) return *next;
    return next == at.end() || !of_compute_[*std::prev(next)].resharded ? *std::prev(next) : *next;
  }
  /// Starts the first `count` gathers, unless they have started.
  void start_up_to(std::size_t count) {
    for (; started_ < std::min(count, of_compute_.size()); ++started_) start(of_compute_[started_]);
  }
  /// As start_up_to, but stops at a bucket that an earlier gather holds unsharded.
  void start_ahead_up_to(std::size_t count) {
    while (started_ < std::min(count, of_compute_.size()) && !is_still_used(started_)) start_up_to(started_ + 1);
  }
  /// Waits for a gather before its bucket is used. @pre the gather has started
  void wait_for(std::size_t position) {
    if (!of_compute_[position].finished) finish(of_compute_[position]);
  }
  /// The compute action does not use the bucket for a while: reshards its oldest finished gather. Ignored if there is
  /// none.
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
  /// A rank that has no compute action contributes its shard, which the others need. @pre the gather has started
  void lend(std::size_t position) {
    wait_for(position);
    reshard(of_compute_[position].action->group, of_compute_[position].action->bucket);
  }
  /// Called at the end of the compute action.
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

  /// Whether an earlier gather of this bucket may still be read.
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
  std::map<std::pair<int, int>, std::vector<std::size_t>> positions_;  // by group and bucket: ascending indices
  std::size_t started_ = 0;                                            // of the compute action's gathers
};

}  // namespace autopar::detail
