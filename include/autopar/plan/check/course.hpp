#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// What a rank does in one turn.
struct CheckedTurn {
  bool backward = false;
  int microbatch = 0;
  std::int64_t samples = 0;
  int missing = 0;                           ///< messages that it waits for
  std::vector<std::size_t> sends, receives;  ///< issued between the turn before and this one
};

struct CheckedMessage {
  std::size_t from = 0, to = 0;  ///< ranks
  Bytes bytes{};
  int awaited_by = -1;  ///< turn of the receiver
  int maker = -1;       ///< unit, -1 = the callers
  int reader = -1;      ///< unit, -1 = the callers
  bool backward = false;
  int microbatch = 0;
};

/// The turns of every rank and the messages between them, in the one order that all ranks agree on: units (a replica of
/// a stage each) play against each other with a forward of 1 and a backward of 2; a turn is written down when it
/// starts, its messages right behind it, and what the callers send two turns ahead.
class CheckedOrder {
 public:
  /// @param forwards, backwards  what of a step is played: one of them, or both
  CheckedOrder(const StatedPlan& stated, bool forwards, bool backwards)
      : stated_(stated), forwards_(forwards), backwards_(backwards) {
    turns.resize(static_cast<std::size_t>(stated.plan().world));
    unit_of_rank_.assign(turns.size(), -1);
    stage_of_rank.assign(turns.size(), -1);
    written_.assign(turns.size(), 0);
    unclaimed_.resize(turns.size());
    for (int s = 0; s < stated.stages(); ++s)
      add_units(s);
    for (auto& list : turns)
      list.emplace_back();  // what follows the last turn
    for (int m = 0; m < stated.plan().microbatches; ++m) {
      for (const Crossing& crossing : stated.crossings())
        add_messages(crossing, m);
    }
    play();
  }

  std::vector<std::vector<CheckedTurn>> turns;  ///< by rank; the last is no turn
  std::vector<int> stage_of_rank;               ///< -1 = idle
  std::vector<CheckedMessage> messages;

 private:
  struct Unit {
    std::size_t rank;
    std::size_t next = 0;
    long free_at = 0;
    std::vector<std::vector<std::size_t>> from_callers{}, makes{};  // by turn
    std::vector<int> missing{};
    std::vector<long> ready_at{};
  };

  /// Turns of a stage in its schedule's order.
  [[nodiscard]] std::vector<std::pair<bool, int>> order_of(int stage) const {
    const int count = stated_.plan().microbatches;
    const int ahead = stated_.all_forwards_first() ? count : std::min(count, stated_.stages() - stage);
    std::vector<std::pair<bool, int>> out;
    for (int forward = 0, backward = 0; backward < count;) {
      if (forward < count && forward - backward < ahead)
        out.emplace_back(false, forward++);
      else
        out.emplace_back(true, backward++);
    }
    return out;
  }

  void add_units(int stage) {
    std::map<std::size_t, std::map<int, std::int64_t>> samples;  // by rank and micro-batch
    for (int m = 0; m < stated_.plan().microbatches; ++m) {
      for (const auto& [rank, range] : stated_.holders(stage, m))
        samples[rank][m] = range.size();
    }
    const auto order = order_of(stage);
    for (const Rank rank : stated_.plan().stages[static_cast<std::size_t>(stage)].ranks) {
      const auto& own = samples[rank.index()];
      for (const auto& [backward, m] : order) {
        if (!(backward ? backwards_ : forwards_) || !own.contains(m)) continue;
        turn_at_[{rank.index(), backward, m}] = turns[rank.index()].size();
        turns[rank.index()].push_back({backward, m, own.at(m), 0, {}, {}});
      }
      unit_of_rank_[rank.index()] = static_cast<int>(units_.size());
      stage_of_rank[rank.index()] = stage;
      Unit unit{.rank = rank.index()};
      unit.from_callers.resize(turns[rank.index()].size());
      unit.makes.resize(turns[rank.index()].size());
      unit.missing.resize(turns[rank.index()].size());
      unit.ready_at.resize(turns[rank.index()].size());
      units_.push_back(std::move(unit));
    }
  }

  void add_messages(const Crossing& crossing, int m) {
    const auto holders = stated_.holders(crossing.from, m), readers = stated_.holders(crossing.to, m);
    std::vector<std::tuple<std::size_t, std::size_t, std::int64_t>> ways;  // from, to, samples
    if (crossing.whole) {
      for (std::size_t i = 0; i < readers.size(); ++i) {
        const std::size_t holder = crossing.from < 0 ? readers[i].first : holders[i % holders.size()].first;
        ways.emplace_back(holder, readers[i].first, 0);
      }
    } else {
      std::size_t first = 0;
      for (const auto& [holder, held] : holders) {
        while (first < readers.size() && readers[first].second.end <= held.begin)
          ++first;
        for (std::size_t i = first; i < readers.size() && readers[i].second.begin < held.end; ++i) {
          const auto& [reader, read] = readers[i];
          ways.emplace_back(holder, reader, std::min(held.end, read.end) - std::max(held.begin, read.begin));
        }
      }
    }
    if (forwards_) {
      for (const auto& [from, to, samples] : ways)
        add_message(crossing.from, crossing.to, from, to, crossing.value, samples, false, m);
    }
    // In a whole step the loss starts its own backward; results have a gradient only when they left the call.
    const bool comes_back = crossing.returns && (crossing.to < stated_.stages() || !forwards_);
    if (backwards_ && comes_back) {
      for (const auto& [from, to, samples] : ways)
        add_message(crossing.to, crossing.from, to, from, crossing.gradient, samples, true, m);
    }
  }

  void add_message(int from_stage, int to_stage, std::size_t from, std::size_t to, const Affine& size,
                   std::int64_t samples, bool backward, int m) {
    const double bytes = std::ceil(std::max(0.0, size.at(static_cast<double>(samples))));
    CheckedMessage message{from, to, Bytes(static_cast<std::int64_t>(bytes)), -1, -1, -1, backward, m};
    if (stated_.is_stage(from_stage)) message.maker = unit_of_rank_[from];
    if (stated_.is_stage(to_stage)) message.reader = unit_of_rank_[to];
    const std::size_t id = messages.size();
    if (message.reader >= 0) {
      Unit& unit = units_[static_cast<std::size_t>(message.reader)];
      const std::size_t turn = turn_at_.at({to, backward, m});
      ++unit.missing[turn];
      if (message.maker < 0) unit.from_callers[turn].push_back(id);
    }
    if (message.maker >= 0)
      units_[static_cast<std::size_t>(message.maker)].makes[turn_at_.at({from, backward, m})].push_back(id);
    messages.push_back(message);
  }

  void play() {
    for (std::size_t ahead = 0; ahead < kCallersAhead; ++ahead) {
      for (Unit& unit : units_)
        send_for_callers(unit, ahead);
    }
    while (true) {
      Unit* first = nullptr;
      long first_start = 0;
      for (Unit& unit : units_) {
        if (unit.next == unit.makes.size() || unit.missing[unit.next] > 0) continue;
        const long start = std::max(unit.free_at, unit.ready_at[unit.next]);
        if (first == nullptr || start < first_start) {
          first = &unit;
          first_start = start;
        }
      }
      if (first == nullptr) break;
      take_turn(*first, first_start);
    }
    for (const Unit& unit : units_) {
      if (unit.next < unit.makes.size()) throw InvalidArgument("check: the plan's stages wait for each other");
    }
  }

  void take_turn(Unit& unit, long start) {
    const std::size_t position = unit.next++;
    CheckedTurn& turn = turns[unit.rank][position];
    auto& arrived = unclaimed_[unit.rank][{turn.backward, turn.microbatch}];
    turn.missing = static_cast<int>(arrived.size());
    for (const std::size_t id : arrived)
      messages[id].awaited_by = static_cast<int>(position);
    arrived.clear();
    ++written_[unit.rank];
    unit.free_at = start + (turn.backward ? 2 : 1);
    for (const std::size_t id : unit.makes[position])
      write(id, unit.free_at);
    send_for_callers(unit, position + kCallersAhead);
  }

  void send_for_callers(Unit& unit, std::size_t position) {
    if (position >= unit.from_callers.size()) return;
    for (const std::size_t id : unit.from_callers[position])
      write(id, 0);
  }

  void write(std::size_t id, long arrival) {
    const CheckedMessage& message = messages[id];
    turns[message.from][written_[message.from]].sends.push_back(id);
    turns[message.to][written_[message.to]].receives.push_back(id);
    if (message.reader < 0) return;
    unclaimed_[message.to][{message.backward, message.microbatch}].push_back(id);
    Unit& reader = units_[static_cast<std::size_t>(message.reader)];
    const std::size_t turn = turn_at_.at({message.to, message.backward, message.microbatch});
    --reader.missing[turn];
    reader.ready_at[turn] = std::max(reader.ready_at[turn], arrival);
  }

  static constexpr std::size_t kCallersAhead = 2;

  const StatedPlan& stated_;
  bool forwards_, backwards_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_rank_;
  std::vector<std::size_t> written_;  // turns of each rank that were written down
  std::vector<std::map<std::pair<bool, int>, std::vector<std::size_t>>> unclaimed_;  // by rank
  std::map<std::tuple<std::size_t, bool, int>, std::size_t> turn_at_;
};

/// Predicted seconds of each rank in one phase of a step.
struct CheckedCourse {
  double end = 0;                                               ///< of all ranks
  std::vector<double> ends, computing, communicating, summing;  ///< by rank
};

/// Plays an order in time: a rank takes its turns one after the other; a message travels beside that when both its ends
/// are issued, one at a time out of a rank and into it, and its turn waits for it; receives are issued `kReceivesAhead`
/// turns early; buckets are summed as they fill during the last backward.
template <class Costs>
class CoursePlayer {
 public:
  /// @param costs  (stage, samples) -> NodeCost, `transfer` and `all_reduce` of a cost model
  CoursePlayer(const StatedPlan& stated, CheckedOrder& order, const Costs& costs)
      : stated_(stated),
        order_(order),
        costs_(costs),
        ranks_(order.turns.size()),
        issued_(order.messages.size(), false) {
    for (auto* list : {&course_.ends, &course_.computing, &course_.communicating, &course_.summing})
      list->assign(ranks_.size(), 0);
    ready_at_.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      ready_at_[r].assign(order.turns[r].size(), 0);
  }

  [[nodiscard]] CheckedCourse play(bool sums) && {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      agenda_.insert({0, r});
    while (!agenda_.empty()) {
      const auto [now, rank] = *agenda_.begin();
      agenda_.erase(agenda_.begin());
      arrive(rank, now);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next + 1 < order_.turns[r].size()) throw InvalidArgument("check: the plan never comes to its end");
    }
    if (sums) play_sums();
    for (const double end : course_.ends)
      course_.end = std::max(course_.end, end);
    return std::move(course_);
  }

 private:
  struct State {
    std::size_t next = 0, posted = 0;
    bool waiting = false, ends_backward = false;
    double since = 0, out_free = 0, in_free = 0, begin = 0, end = 0;  // begin and end: of the last turn
  };

  void arrive(std::size_t rank, double now) {
    State& state = ranks_[rank];
    const auto& turns = order_.turns[rank];
    while (state.posted < turns.size() && state.posted <= state.next + kReceivesAhead) {
      for (const std::size_t id : turns[state.posted].receives)
        issue(id, now);
      ++state.posted;
    }
    for (const std::size_t id : turns[state.next].sends)
      issue(id, now);
    state.waiting = true;
    state.since = now;
    try_turn(rank);
  }

  void issue(std::size_t id, double now) {
    if (!issued_[id]) {
      issued_[id] = true;
      return;
    }
    const CheckedMessage& message = order_.messages[id];
    double start = now, end = now;
    if (message.from != message.to) {
      State &sender = ranks_[message.from], &receiver = ranks_[message.to];
      start = std::max({now, sender.out_free, receiver.in_free});
      end = start + costs_.transfer(message.bytes, Rank::of(message.from), Rank::of(message.to)).value();
      sender.out_free = receiver.in_free = end;
    }
    for (const std::size_t rank : {message.from, message.to}) {
      course_.ends[rank] = std::max(course_.ends[rank], end);
      course_.communicating[rank] += end - start;
    }
    if (message.awaited_by < 0) return;
    const auto turn = static_cast<std::size_t>(message.awaited_by);
    --order_.turns[message.to][turn].missing;
    ready_at_[message.to][turn] = std::max(ready_at_[message.to][turn], end);
    try_turn(message.to);
  }

  void try_turn(std::size_t rank) {
    State& state = ranks_[rank];
    const CheckedTurn& turn = order_.turns[rank][state.next];
    if (!state.waiting || turn.missing > 0 || state.next + 1 == order_.turns[rank].size()) return;
    const auto cost = costs_.of_stage(order_.stage_of_rank[rank], turn.samples);
    const double takes = (turn.backward ? cost.backward : cost.forward).value();
    state.waiting = false;
    state.begin = std::max(state.since, ready_at_[rank][state.next]);
    state.end = state.begin + takes;
    state.ends_backward = turn.backward;
    course_.computing[rank] += takes;
    course_.ends[rank] = std::max(course_.ends[rank], state.end);
    ++state.next;
    agenda_.insert({state.end, rank});
  }

  void play_sums() {
    std::vector<double> free_at(ranks_.size(), 0);
    for (const GradientSum& sum : stated_.sums()) {
      std::vector<Rank> members;
      for (const std::size_t rank : sum.ranks)
        members.push_back(Rank::of(rank));
      const auto count = static_cast<double>(sum.buckets.size());
      for (std::size_t b = 0; b < sum.buckets.size(); ++b) {
        double start = 0;
        for (const std::size_t rank : sum.ranks) {
          const State& state = ranks_[rank];
          const double filled = sum.stage >= 0 && state.ends_backward ? (static_cast<double>(b) + 1) / count : 1;
          start = std::max({start, state.begin + filled * (state.end - state.begin), free_at[rank]});
        }
        const double takes = costs_.all_reduce(Bytes(sum.buckets[b]), members).value();
        for (const std::size_t rank : sum.ranks) {
          free_at[rank] = start + takes;
          course_.summing[rank] += takes;
          course_.ends[rank] = std::max(course_.ends[rank], free_at[rank]);
        }
      }
    }
  }

  const StatedPlan& stated_;
  CheckedOrder& order_;
  const Costs& costs_;
  std::vector<State> ranks_;
  std::vector<bool> issued_;
  std::vector<std::vector<double>> ready_at_;
  std::set<std::pair<double, std::size_t>> agenda_;
  CheckedCourse course_;
};

}  // namespace autopar::detail
