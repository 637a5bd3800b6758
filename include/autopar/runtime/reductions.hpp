#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/exchanges.hpp>
#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/stage_engine.hpp>
#include <autopar/runtime/transfer.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// The sums of gradients of a rank's program, whole or into shards.
///
/// They start in the program's order, whichever bucket is full first, so that all members of a group agree: each when
/// its bucket is full and, on a transport that is `in_order()`, when nothing that the program has before it is still to
/// be issued. Those of one group end in that order, too, so that what is added up of them has the same bits every time.
/// Whoever fills a bucket starts what may start then.
template <StageEngine Engine, Transport Wire>
class Reductions {
 public:
  /// @param groups     for each of Pipeline::groups, what Transport::make_group gave
  /// @param actions    the rank's whole program; like everything else, it must outlive the reductions
  /// @param exchanges  of its compute actions
  Reductions(Engine& engine, Wire& wire, const std::vector<GroupId>& groups, const std::vector<Action>& actions,
             const Exchanges<Wire>& exchanges, Progress& progress)
      : engine_(engine), wire_(wire), groups_(groups), progress_(progress), in_order_(wire.in_order()) {
    read(actions, exchanges);
  }

  /// Called for each compute action, right before it.
  void begin_compute(const Action& compute) {
    if (!is_backward(compute)) return;
    --backwards_left_;
    --backwards_left_of_[compute.stage];
  }
  /// Nothing will be added to a bucket any more, says the engine while it runs a backward, or the program after it.
  /// Ignored while a backward that may add to it has still to begin.
  void fill(int group, int bucket) {
    for (std::size_t i = started_; i < sums_.size(); ++i) {
      const Action& action = *sums_[i].action;
      if (action.group == group && action.bucket == bucket && !is_awaited(sums_[i])) sums_[i].full = true;
    }
  }

  /// What is to be started now; null if nothing may be.
  [[nodiscard]] const Action* startable() const {
    return started_ < sums_.size() && sums_[started_].full && may_start(started_) ? sums_[started_].action : nullptr;
  }
  /// @pre something is startable
  void start_next() {
    Sum& sum = sums_[started_++];
    start(sum);
    if (is_of_compute(*sum.action)) make_room();
  }

  // ---- of a compute action that gathers, too: gatherings and sums are issued in one order

  /// So many sums, the next ones, belong to a compute action that is about to begin.
  void begin_gathering_compute(std::size_t sums) { end_of_compute_ = started_ + sums; }
  /// The next of these; null if all have started.
  [[nodiscard]] const Action* next_of_compute() const {
    return started_ < end_of_compute_ ? sums_[started_].action : nullptr;
  }
  /// What has not been added to the next one's bucket by now never will be. @pre there is one
  void fill_next_of_compute() { sums_[started_].full = true; }
  void end_gathering_compute() { end_of_compute_ = 0; }

  // ---- ends

  /// Hands over sums that have ended. Waits for nothing.
  void settle() {
    std::vector<int> waiting;  // groups, whose later sums wait, too
    for (std::size_t i = 0; i < in_flight_.size();) {
      const int group = in_flight_[i]->action->group;
      if (std::find(waiting.begin(), waiting.end(), group) == waiting.end() && wire_.done(in_flight_[i]->ticket)) {
        finish(i);
      } else {
        waiting.push_back(group);
        ++i;
      }
    }
  }
  void finish() {
    while (!in_flight_.empty()) finish(0);
  }
  void drain() noexcept { detail::drain(wire_, sums_); }

 private:
  struct Sum : Transfer<Wire> {
    /// Of sums within compute actions: the compute action; null on a rank without samples.
    const Action* filled_by = nullptr;
    /// The program's last action before it that others take part in: a message, a gathering, a compute action that
    /// exchanges values.
    const Action* shared_before = nullptr;
    bool full = false;
  };
  static constexpr int kSumsInFlight = 1;

  static bool is_backward(const Action& action) {
    return is_compute(action.kind) && action.kind != ActionKind::kForward;
  }
  static bool is_of_compute(const Action& collective) { return collective.microbatch >= 0; }
  static bool is_filled_by(const Action& sum, const Action* compute) {
    return is_of_compute(sum) && compute != nullptr && compute->stage == sum.stage &&
           compute->microbatch == sum.microbatch;
  }

  void read(const std::vector<Action>& actions, const Exchanges<Wire>& exchanges) {
    const Action* shared = nullptr;
    const Action* last_compute = nullptr;  // that gives weight gradients
    for (const Action& action : actions) {
      const auto kind = action.kind;
      if (is_backward(action)) {
        ++backwards_left_;
        ++backwards_left_of_[action.stage];
      }
      if (gives_weight_gradients(kind)) last_compute = &action;
      if (kind == ActionKind::kReduce || kind == ActionKind::kReduceScatter)
        sums_.push_back({{&action}, is_filled_by(action, last_compute) ? last_compute : nullptr, shared});
      const bool gathers_for_compute = kind == ActionKind::kGather && is_of_compute(action);
      const bool is_message = kind == ActionKind::kSend || kind == ActionKind::kReceive;
      if (gathers_for_compute || (is_message && action.peer != wire_.rank()) || exchanges.are_in(action))
        shared = &action;
    }
  }

  /// Whether a backward that may add to the bucket has still to begin.
  [[nodiscard]] bool is_awaited(const Sum& sum) const {
    const Action& action = *sum.action;
    if (is_of_compute(action)) return (sum.filled_by == nullptr ? &action : sum.filled_by) > progress_.reached();
    if (!action.stage.valid()) return backwards_left_ > 0;
    const auto left = backwards_left_of_.find(action.stage);
    return left != backwards_left_of_.end() && left->second > 0;
  }
  /// On a device all members must issue the same operations in the same order.
  [[nodiscard]] bool may_start(std::size_t i) const {
    const Action* const before = sums_[i].shared_before;
    return !in_order_ || i < end_of_compute_ || before == nullptr || before <= progress_.reached();
  }

  void start(Sum& sum) {
    const Action& action = *sum.action;
    const GroupId group = groups_.at(static_cast<std::size_t>(action.group));
    sum.start = progress_.now();
    sum.buffer = engine_.bucket(action);
    const DType dtype = engine_.bucket_dtype(action);
    sum.ticket = action.kind == ActionKind::kReduce ? wire_.all_reduce(sum.buffer, dtype, group)
                                                    : wire_.reduce_scatter(sum.buffer, dtype, group);
    sum.travels = true;
    in_flight_.push_back(&sum);
  }
  /// A rank that sums into shards within its compute actions has no room for more whole buckets than kSumsInFlight, and
  /// the one that is filled. All members issue what belongs to such a compute action in the same order. Sums of whole
  /// calls are not waited for: they may have started before the other members come to them.
  void make_room() {
    const auto of_compute = [](const Sum* sum) { return is_of_compute(*sum->action); };
    while (std::count_if(in_flight_.begin(), in_flight_.end(), of_compute) > kSumsInFlight) {
      finish(static_cast<std::size_t>(std::find_if(in_flight_.begin(), in_flight_.end(), of_compute) -
                                      in_flight_.begin()));
    }
  }
  void finish(std::size_t i) {
    Sum& sum = *in_flight_[i];
    const Action* const outer = progress_.turn_to(sum.action);
    wire_.wait(sum.ticket);
    sum.travels = false;
    engine_.reduced(*sum.action);
    sum.buffer = {};
    sum.ticket = {};  // which holds the buffer, too
    progress_.ended(*sum.action, sum.start);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    progress_.turn_to(outer);
  }

  Engine& engine_;
  Wire& wire_;
  const std::vector<GroupId>& groups_;
  Progress& progress_;
  const bool in_order_;
  std::deque<Sum> sums_;            // in the program's order
  std::size_t started_ = 0;         // of them
  std::deque<Sum*> in_flight_;      // those that have not ended
  std::size_t end_of_compute_ = 0;  // sums before it are of the compute action that gathers now; 0: none does
  int backwards_left_ = 0;
  std::map<StageId, int> backwards_left_of_;
};

}  // namespace autopar::detail
