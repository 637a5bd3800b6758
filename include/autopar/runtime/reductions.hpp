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

/// The gradient reductions of a rank's program: all-reduces and reduce-scatters.
///
/// Reductions start in the program's order, whichever bucket is ready first, so all members of a group agree. Each
/// starts when its bucket is ready. On a transport that is `in_order()`, everything before it in the program must also
/// have been issued. Reductions of one group also end in that order, so what is accumulated from them is bit-identical
/// in every run. The thread that completes a bucket starts the reductions that may start.
///
/// A reduction that the engine performs itself is several exchanges, and starts where it would on a transport that is
/// `in_order()`: in host memory the thread waits for each.
template <StageEngine Engine, Transport Wire>
class Reductions {
 public:
  /// @param groups     one for each of Pipeline::groups, as Transport::make_group returned them
  /// @param actions    the rank's whole program; all parameters must outlive the object
  /// @param exchanges  of the program's compute actions
  Reductions(Engine& engine, Wire& wire, const std::vector<GroupId>& groups, const std::vector<Action>& actions,
             const Exchanges<Wire>& exchanges, Progress& progress)
      : engine_(engine), wire_(wire), groups_(groups), progress_(progress), in_order_(wire.in_order()) {
    read(actions, exchanges);
  }

  /// Called right before each compute action.
  void begin_compute(const Action& compute) {
    if (!is_backward(compute)) return;
    --backwards_left_;
    --backwards_left_of_[compute.stage];
  }
  /// Marks a bucket as ready: the engine calls it during a backward, or the program afterwards. Ignored while a
  /// backward that may add to the bucket has not begun.
  void fill(int group, int bucket) {
    for (std::size_t i = started_; i < sums_.size(); ++i) {
      const Action& action = *sums_[i].action;
      if (action.group == group && action.bucket == bucket && !is_awaited(sums_[i])) sums_[i].full = true;
    }
  }

  /// The reduction to start now; null if none may start.
  [[nodiscard]] const Action* startable() const {
    return started_ < sums_.size() && sums_[started_].full && may_start(started_) ? sums_[started_].action : nullptr;
  }
  /// @pre startable() is not null
  void start_next() {
    Sum& sum = sums_[started_++];
    start(sum);
    if (is_of_compute(*sum.action)) make_room();
  }

  // ---- compute actions that gather: gathers and reductions are issued in one order

  /// The next `sums` reductions belong to the compute action that is about to begin.
  void begin_gathering_compute(std::size_t sums) { end_of_compute_ = started_ + sums; }
  /// The next of these; null if all have started.
  [[nodiscard]] const Action* next_of_compute() const {
    return started_ < end_of_compute_ ? sums_[started_].action : nullptr;
  }
  /// Marks the next one's bucket as ready, since nothing more will be added to it. @pre next_of_compute() is not null
  void fill_next_of_compute() { sums_[started_].full = true; }
  void end_gathering_compute() { end_of_compute_ = 0; }

  // ---- completion

  /// Passes completed reductions to the engine. Does not wait.
  void settle() {
    std::vector<int> waiting;  // groups whose later reductions must wait, too
    const auto is_over = [&](const Sum& sum) { return !sum.travels || wire_.done(sum.ticket); };
    for (std::size_t i = 0; i < in_flight_.size();) {
      const int group = in_flight_[i]->action->group;
      if (std::find(waiting.begin(), waiting.end(), group) == waiting.end() && is_over(*in_flight_[i])) {
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
    /// For a reduction within compute actions: the compute action; null on a rank without samples in it.
    const Action* filled_by = nullptr;
    /// The program's last action before the reduction in which other ranks take part: a message, a gather, or a compute
    /// action that exchanges values.
    const Action* shared_before = nullptr;
    bool full = false;
  };
  static constexpr int kSumsInFlight = 1;

  /// Exchanges of one sum, one after the other.
  class Parts final : public PartExchange {
   public:
    Parts(Wire& wire, Sum& sum, GroupId group) : wire_(wire), sum_(sum), group_(group) {}

    void all_to_all(const Buffer& buffer) override { complete(buffer, wire_.all_to_all(buffer, group_)); }
    void all_gather(const Buffer& buffer) override { complete(buffer, wire_.all_gather(buffer, group_)); }

   private:
    /// On a device the last one may be under way when the sum has started.
    void complete(const Buffer& buffer, typename Wire::Ticket ticket) {
      sum_.buffer = buffer;
      sum_.ticket = std::move(ticket);
      sum_.travels = true;
      wire_.wait(sum_.ticket);
      sum_.buffer = {};
      sum_.travels = !wire_.done(sum_.ticket);
      if (!sum_.travels) sum_.ticket = {};  // it may own the buffer, too
    }

    Wire& wire_;
    Sum& sum_;
    GroupId group_;
  };

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
    const Action* last_compute = nullptr;  // the last one that computes weight gradients
    for (const Action& action : actions) {
      const auto kind = action.kind;
      if (is_backward(action)) {
        ++backwards_left_;
        ++backwards_left_of_[action.stage];
      }
      if (gives_weight_gradients(kind)) last_compute = &action;
      if (kind == ActionKind::kAllReduce || kind == ActionKind::kReduceScatter)
        sums_.push_back({{&action}, is_filled_by(action, last_compute) ? last_compute : nullptr, shared});
      const bool gathers_for_compute = kind == ActionKind::kAllGather && is_of_compute(action);
      const bool is_message = kind == ActionKind::kSend || kind == ActionKind::kReceive;
      if (gathers_for_compute || (is_message && action.peer != wire_.rank()) || exchanges.are_in(action))
        shared = &action;
    }
  }

  /// Whether a backward that may add to the bucket has not begun.
  [[nodiscard]] bool is_awaited(const Sum& sum) const {
    const Action& action = *sum.action;
    if (is_of_compute(action)) return (sum.filled_by == nullptr ? &action : sum.filled_by) > progress_.reached();
    if (!action.stage.valid()) return backwards_left_ > 0;
    const auto left = backwards_left_of_.find(action.stage);
    return left != backwards_left_of_.end() && left->second > 0;
  }
  /// Whether the engine performs the reduction itself.
  [[nodiscard]] bool is_in_parts(const Action& action) const {
    if constexpr (PartSummingEngine<Engine>) return engine_.sums_parts(action);
    return false;
  }
  /// On a device all members must issue the same operations in the same order.
  [[nodiscard]] bool may_start(std::size_t i) const {
    const Action* const before = sums_[i].shared_before;
    const bool anywhere = !in_order_ && !is_in_parts(*sums_[i].action);
    return anywhere || i < end_of_compute_ || before == nullptr || before <= progress_.reached();
  }

  void start(Sum& sum) {
    const Action& action = *sum.action;
    const GroupId group = groups_.at(static_cast<std::size_t>(action.group));
    sum.start = progress_.now();
    if (is_in_parts(action)) {
      sum_parts(sum, group);
    } else {
      sum.buffer = engine_.bucket(action);
      const DType dtype = engine_.bucket_dtype(action);
      sum.ticket = action.kind == ActionKind::kAllReduce ? wire_.all_reduce(sum.buffer, dtype, group)
                                                         : wire_.reduce_scatter(sum.buffer, dtype, group);
      sum.travels = true;
    }
    in_flight_.push_back(&sum);
  }
  void sum_parts(Sum& sum, GroupId group) {
    if constexpr (PartSummingEngine<Engine>) {
      Parts exchange(wire_, sum, group);
      engine_.sum_parts(*sum.action, exchange);
    }
  }
  /// Waits until at most kSumsInFlight reductions of compute actions are in flight. A rank that reduces into shards has
  /// memory for their buckets and the one being filled. All members issue the operations of such a compute action in
  /// the same order. Reductions of whole calls are not waited for, since other members may not have reached them yet.
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
    if (sum.travels) wire_.wait(sum.ticket);
    sum.travels = false;
    engine_.reduced(*sum.action);
    sum.buffer = {};
    sum.ticket = {};  // a ticket may own the buffer, too
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
  std::size_t started_ = 0;         // number of reductions that have started
  std::deque<Sum*> in_flight_;      // reductions that have started and not ended
  std::size_t end_of_compute_ = 0;  // reductions before it belong to the compute action that gathers now; 0: there is
                                    // none
  int backwards_left_ = 0;
  std::map<StageId, int> backwards_left_of_;
};

}  // namespace autopar::detail
