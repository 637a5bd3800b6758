#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/verify/stated_plan.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/traits.hpp>

#include "oracle/batch.hpp"

namespace autopar::oracle {

/// One compute action of a rank.
struct OrderedAction {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int microbatch = 0;
  std::int64_t samples = 0;
  int missing = 0;                               ///< number of messages that it waits for
  std::vector<std::size_t> sends{}, receives{};  ///< issued between the previous compute action and this one

  [[nodiscard]] bool is_forward() const { return kind == ActionKind::kForward; }
  /// Whether it sends or awaits messages; weight gradients are not sent.
  [[nodiscard]] bool has_messages() const { return kind != ActionKind::kBackwardWeight; }
};

struct OrderedMessage {
  std::size_t from = 0, to = 0;  ///< ranks
  Bytes bytes{};
  int awaited_by = -1;  ///< the receiver's compute action
  int maker = -1;       ///< stage, -1 = the callers
  int reader = -1;      ///< stage, -1 = the callers
  bool backward = false;
  int microbatch = 0;
};

/// The compute actions of every rank and the messages between them, in one order that all ranks agree on. Ranks are
/// simulated with nominal durations: forward 1, backward 2, each part of a backward 1. A compute action is written when
/// it starts, its messages right after it. What the callers send is written two compute actions ahead. Independent of
/// `make_program`.
class Order {
 public:
  /// @param orders  [rank], see `compute_orders`
  /// @param forwards, backwards  which phases of a step are simulated, one or both
  Order(const verify::StatedPlan& stated, const std::vector<std::vector<ComputeAction>>& orders, bool forwards,
        bool backwards)
      : batch_(stated.plan), forwards_(forwards), backwards_(backwards) {
    computes.resize(orders.size());
    lanes_.resize(orders.size());
    written_.assign(orders.size(), 0);
    unclaimed_.resize(orders.size());
    const auto samples = samples_of_computes();
    for (std::size_t r = 0; r < orders.size(); ++r) add_lane(r, orders[r], samples[r]);
    find_precedence();
    for (auto& list : computes) list.emplace_back();  // what follows the last compute action
    for (int m = 0; m < batch_.plan().microbatches; ++m) {
      for (const Crossing& crossing : crossings(stated)) add_messages(crossing, m);
    }
    play();
  }

  std::vector<std::vector<OrderedAction>> computes;  ///< by rank; the last entry is no compute action
  std::vector<OrderedMessage> messages;

  /// A rank whose next compute action never gets what it needs, -1 if there is none.
  [[nodiscard]] int stuck() const {
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      if (lanes_[r].next + 1 < computes[r].size()) return static_cast<int>(r);
    }
    return -1;
  }
  /// The compute action that a rank has reached. @pre it is stuck
  [[nodiscard]] const OrderedAction& next_compute(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return computes[r][lanes_[r].next];
  }

 private:
  /// What a compute action needs and makes.
  struct Slot {
    std::vector<std::size_t> from_callers{}, makes{};
    int missing = 0;
    long ready_at = 0;
  };
  struct Lane {
    std::size_t next = 0;
    long free_at = 0;
    std::vector<Slot> slots{};  // by compute action
  };
  using Samples = std::map<std::pair<int, int>, std::int64_t>;  // of stage and micro-batch

  [[nodiscard]] std::vector<Samples> samples_of_computes() const {
    std::vector<Samples> out(computes.size());
    for (int s = 0; s < batch_.stages(); ++s) {
      for (int m = 0; m < batch_.plan().microbatches; ++m) {
        for (const auto& [ranks, range] : batch_.holders(s, m)) {
          for (const std::size_t rank : ranks) out[rank][{s, m}] = range.size();
        }
      }
    }
    return out;
  }

  /// Leaves out compute actions of the other phase and those without samples.
  void add_lane(std::size_t rank, const std::vector<ComputeAction>& order, const Samples& samples) {
    for (const ComputeAction& said : order) {
      const int stage = said.stage.value();
      const auto held = samples.find({stage, said.microbatch});
      const OrderedAction compute{said.kind, stage, said.microbatch, held == samples.end() ? 0 : held->second};
      if (compute.samples == 0 || !(compute.is_forward() ? forwards_ : backwards_)) continue;
      if (compute.has_messages())
        compute_at_[{rank, stage, !compute.is_forward(), compute.microbatch}] = computes[rank].size();
      computes[rank].push_back(compute);
    }
    lanes_[rank].slots.resize(computes[rank].size());
  }

  /// Precedence of ranks that could start at the same time. By stages if each stage has its own order, by ranks if each
  /// rank has one.
  void find_precedence() {
    if (traits_of(batch_.plan().schedule).layout != StageLayout::kStraight) {
      for (std::size_t r = 0; r < lanes_.size(); ++r) precedence_.push_back(r);
      return;
    }
    for (int s = 0; s < batch_.stages(); ++s) {
      for (const Rank rank : batch_.ranks_of(s)) precedence_.push_back(rank.index());
    }
  }

  void add_messages(const Crossing& crossing, int m) {
    const auto holders = batch_.holders(crossing.from, m), readers = batch_.holders(crossing.to, m);
    using Ranks = std::vector<std::size_t>;
    std::vector<std::tuple<Ranks, Ranks, std::int64_t>> ways;  // from, to, samples
    if (crossing.whole) {
      for (std::size_t i = 0; i < readers.size(); ++i) {
        const Ranks& holder = crossing.from < 0 ? readers[i].first : holders[i % holders.size()].first;
        ways.emplace_back(holder, readers[i].first, 0);
      }
    } else {
      std::size_t first = 0;
      for (const auto& [holder, held] : holders) {
        while (first < readers.size() && readers[first].second.end <= held.begin) ++first;
        for (std::size_t i = first; i < readers.size() && readers[i].second.begin < held.end; ++i) {
          const auto& [reader, read] = readers[i];
          ways.emplace_back(holder, reader, std::min(held.end, read.end) - std::max(held.begin, read.begin));
        }
      }
    }
    // Each receiver gets a value once, from the holders in turn.
    if (forwards_) {
      for (const auto& [from, to, samples] : ways) {
        for (std::size_t t = 0; t < to.size(); ++t)
          add_message(crossing.from, crossing.to, from[t % from.size()], to[t], crossing.value, samples, false, m);
      }
    }
    // In a whole step the loss starts its own backward; results have a gradient only when they left the call.
    const bool comes_back = crossing.returns && (crossing.to < batch_.stages() || !forwards_);
    if (backwards_ && comes_back) {
      for (const auto& [from, to, samples] : ways) {
        for (std::size_t t = 0; t < from.size(); ++t)
          add_message(crossing.to, crossing.from, to[t % to.size()], from[t], crossing.gradient, samples, true, m);
      }
    }
  }

  void add_message(int from_stage, int to_stage, std::size_t from, std::size_t to, const Affine& size,
                   std::int64_t samples, bool backward, int m) {
    const double bytes = std::ceil(std::max(0.0, size.at(static_cast<double>(samples))));
    OrderedMessage message{from, to, Bytes(static_cast<std::int64_t>(bytes)), -1, -1, -1, backward, m};
    if (batch_.is_stage(from_stage)) message.maker = from_stage;
    if (batch_.is_stage(to_stage)) message.reader = to_stage;
    const std::size_t id = messages.size();
    if (message.reader >= 0) {
      Slot& slot = lanes_[to].slots[compute_at_.at({to, to_stage, backward, m})];
      ++slot.missing;
      if (message.maker < 0) slot.from_callers.push_back(id);
    }
    if (message.maker >= 0) lanes_[from].slots[compute_at_.at({from, from_stage, backward, m})].makes.push_back(id);
    messages.push_back(message);
  }

  void play() {
    for (std::size_t ahead = 0; ahead < kCallersAhead; ++ahead) {
      for (const std::size_t rank : precedence_) send_for_callers(rank, ahead);
    }
    while (true) {
      long first_start = -1;
      std::size_t first = 0;
      for (const std::size_t rank : precedence_) {
        const long start = start_of_next(rank);
        if (start < 0 || (first_start >= 0 && start >= first_start)) continue;
        first_start = start;
        first = rank;
      }
      if (first_start < 0) break;
      const auto together = who_starts(first);
      for (const std::size_t rank : together) start_compute(rank, first_start);
      for (const std::size_t rank : together) send_results(rank);
    }
  }

  /// When a rank's next compute action can start, together with the ranks that start with it; negative if one of them
  /// cannot start yet.
  [[nodiscard]] long start_of_next(std::size_t rank) const {
    const auto alone = [&](std::size_t r) {
      const Lane& lane = lanes_[r];
      if (lane.next == lane.slots.size() || lane.slots[lane.next].missing > 0) return -1L;
      return std::max(lane.free_at, lane.slots[lane.next].ready_at);
    };
    long start = alone(rank);
    if (start < 0 || !exchanges(rank)) return start;
    const OrderedAction& compute = computes[rank][lanes_[rank].next];
    for (const std::size_t other : who_starts(rank)) {
      const long own_start = alone(other);
      if (own_start < 0) return -1;
      const OrderedAction& own = computes[other][lanes_[other].next];
      if (own.kind != compute.kind || own.stage != compute.stage || own.microbatch != compute.microbatch) return -1;
      start = std::max(start, own_start);
    }
    return start;
  }

  /// Whether a rank's next compute action exchanges values among tensor shards.
  [[nodiscard]] bool exchanges(std::size_t rank) const {
    const OrderedAction& compute = computes[rank][lanes_[rank].next];
    return batch_.shards(compute.stage) > 1 && compute.has_messages();
  }

  /// The ranks that start together: the tensor shards of a replica if they exchange values, as in all but weight
  /// backwards.
  [[nodiscard]] std::vector<std::size_t> who_starts(std::size_t rank) const {
    if (!exchanges(rank)) return {rank};
    const OrderedAction& compute = computes[rank][lanes_[rank].next];
    for (const auto& [ranks, samples] : batch_.holders(compute.stage, compute.microbatch)) {
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return ranks;
    }
    return {rank};
  }

  void start_compute(std::size_t rank, long start) {
    Lane& lane = lanes_[rank];
    const std::size_t position = lane.next++;
    OrderedAction& compute = computes[rank][position];
    if (compute.has_messages()) {
      auto& arrived = unclaimed_[rank][{compute.stage, !compute.is_forward(), compute.microbatch}];
      compute.missing = static_cast<int>(arrived.size());
      for (const std::size_t id : arrived) messages[id].awaited_by = static_cast<int>(position);
      arrived.clear();
    }
    ++written_[rank];
    lane.free_at = start + (compute.kind == ActionKind::kBackward ? 2 : 1);
  }

  /// Writes the results of the compute action that has just started.
  void send_results(std::size_t rank) {
    const Lane& lane = lanes_[rank];
    const std::size_t position = lane.next - 1;
    for (const std::size_t id : lane.slots[position].makes) write(id, lane.free_at);
    send_for_callers(rank, position + kCallersAhead);
  }

  void send_for_callers(std::size_t rank, std::size_t position) {
    if (position >= lanes_[rank].slots.size()) return;
    for (const std::size_t id : lanes_[rank].slots[position].from_callers) write(id, 0);
  }

  void write(std::size_t id, long arrival) {
    const OrderedMessage& message = messages[id];
    computes[message.from][written_[message.from]].sends.push_back(id);
    computes[message.to][written_[message.to]].receives.push_back(id);
    if (message.reader < 0) return;
    unclaimed_[message.to][{message.reader, message.backward, message.microbatch}].push_back(id);
    const std::size_t compute = compute_at_.at({message.to, message.reader, message.backward, message.microbatch});
    Slot& slot = lanes_[message.to].slots[compute];
    --slot.missing;
    slot.ready_at = std::max(slot.ready_at, arrival);
  }

  static constexpr std::size_t kCallersAhead = 2;

  Batch batch_;
  bool forwards_, backwards_;
  std::vector<Lane> lanes_;              // by rank
  std::vector<std::size_t> precedence_;  // ranks
  std::vector<std::size_t> written_;     // number of each rank's compute actions that were written
  std::vector<std::map<std::tuple<int, bool, int>, std::vector<std::size_t>>> unclaimed_;  // by rank
  std::map<std::tuple<std::size_t, int, bool, int>, std::size_t> compute_at_;  // of rank, stage, direction, micro-batch
};

}  // namespace autopar::oracle
