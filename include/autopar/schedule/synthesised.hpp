#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/units.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/given_orders.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>
#include <autopar/schedule/synthesis/improvement.hpp>
#include <autopar/schedule/synthesis/list_scheduling.hpp>
#include <autopar/schedule/synthesis/problem.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// The result of a synthesiser.
struct Synthesis {
  GivenOrders orders;
  ScheduleKind origin = kSynthesisedSchedule;  ///< the fixed schedule that was best, or that was improved
  Seconds step{};                              ///< simulated
  Seconds best_fixed{};     ///< fastest fixed schedule on this pipeline within the limits; infinite: none
  Seconds lower_bound{};    ///< for any order on this pipeline
  std::int64_t states = 0;  ///< number of orders that were simulated
};

/// A schedule for unequal compute actions, messages that take time, and a memory limit for each rank. It assumes a step
/// in which the optimizer waits for all ranks.
///
/// The search runs list scheduling with a few dozen rules, then with the urgencies found in the best timelines. Local
/// search then shortens the critical paths of the best of these and of the fixed schedules within the limits. The
/// simulator decides. So the result is never slower than a fixed schedule within the limits. That schedule is simulated
/// with all replicas of a stage in the same order, whichever slices are empty. Deterministic. The bubble has no closed
/// form; `Synthesis::lower_bound` bounds the distance to the optimum. A rank may use all memory up to its limit.
///
/// Replicas of a stage, including unequal ones, run their compute actions in the same order.
/// @source rules and lower bound after Qi et al., ICLR 2024, arXiv:2401.10241, section 3; memory by Dijkstra's banker
template <SplitBackwardCosts Costs>
struct Synthesised {
  using policy_category = schedule_policy_tag;

  Costs costs;
  std::vector<std::int64_t> local;  ///< number of samples of each rank
  std::vector<Bytes> held{};        ///< [stage] from its forward to its weight backward, for the largest slice; empty:
                                    ///< 1 each
  std::vector<Bytes> limits{};      ///< [rank] limit of what it holds; empty: no limit
  bool parts_backwards = true;      ///< the runtime can run a backward in two parts
  std::int64_t budget = 2000;       ///< number of orders to simulate

  /// @throws InvalidArgument if one micro-batch in all stages of a rank exceeds the rank's limit
  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline& pipeline, int microbatches) const {
    return synthesise(pipeline, microbatches).orders.orders;
  }

  /// @cost O(budget * compute actions of all stages)
  [[nodiscard]] Synthesis synthesise(const Pipeline& pipeline, int microbatches) const {
    expect(held.empty() || held.size() == pipeline.stages.size(), "Synthesised: `held` needs one entry a stage");
    expect(limits.empty() || limits.size() == static_cast<std::size_t>(pipeline.ranks),
           "Synthesised: `limits` needs one entry a rank");
    expect(microbatches >= 1, "Synthesised: at least one micro-batch is needed");
    return Search(*this, pipeline, microbatches).run();
  }

 private:
  class Search {
   public:
    Search(const Synthesised& policy, const Pipeline& pipeline, int microbatches)
        : policy_(policy),
          pipeline_(pipeline),
          layout_{policy.local, microbatches},
          reader_(pipeline, layout_, policy.costs),
          problem_(reader_.read(policy.held, policy.limits, policy.parts_backwards)),
          budget_(policy.budget) {
      for (auto& lane : problem_.lanes) {
        // With memory for all micro-batches no limit is needed.
        if (layout_.microbatches * lane.held * (1 + 1e-9) <= lane.limit) lane.limit = detail::kForever;
        if (lane.held <= lane.limit) continue;
        throw InvalidArgument("schedule synth: rank " + std::to_string(lane.ranks.front().value()) + " may hold " +
                              std::to_string(lane.limit) + " bytes, but one micro-batch in its stages takes " +
                              std::to_string(lane.held) + "; use more micro-batches or fewer stages a rank");
      }
    }

    [[nodiscard]] Synthesis run() {
      best_.step = Seconds(detail::kForever);
      best_.lower_bound = reader_.lower_bound();
      for (const ScheduleKind kind : kScheduleKinds) try_fixed(kind);
      best_.best_fixed = best_.step;
      if (!is_bound(best_.step.value())) {
        list_rules();
        sharpen();
        improve();
        for (const OrdersFound& found : found_) judge(found);
      }
      best_.states = policy_.budget - budget_;
      best_.orders.microbatches = layout_.microbatches;
      return std::move(best_);
    }

   private:
    using OrdersFound = detail::OrdersFound;
    static constexpr std::size_t kKept = 6;  // orders that are improved further
    static constexpr int kSharpenings = 6;   // of each

    [[nodiscard]] bool is_bound(double step) const { return step <= best_.lower_bound.value() * (1 + 1e-9); }

    void try_fixed(ScheduleKind kind) {
      if (traits_of(kind).orders_in_plan || (!policy_.parts_backwards && !keeps_backwards_whole(kind))) return;
      auto orders = fixed_orders(kind);
      if (!orders) return;
      for (std::size_t l = 0; l < orders->size(); ++l) {
        if (!problem_.fits((*orders)[l], problem_.lanes[l])) return;
      }
      detail::OrderedTimeline timeline(problem_);
      if (!timeline.play(*orders)) return;
      found_.push_back({std::move(*orders), timeline.makespan(), kind});
      judge(found_.back());
    }

    /// The orders of a fixed schedule. All replicas of a stage have the same order, so the orders run whichever slices
    /// are empty. Each lane is one rank, and all ranks of a stage receive from all ranks of another. Empty if the
    /// stages do not have the schedule's layout.
    [[nodiscard]] std::optional<detail::LaneOrders> fixed_orders(ScheduleKind kind) const {
      Pipeline lanes{.ranks = static_cast<int>(problem_.lanes.size()), .stages = {}, .channels = {}, .groups = {}};
      for (const auto& stage : problem_.stages) {
        std::vector<Rank> ranks;
        for (const std::size_t l : stage.lanes) ranks.push_back(Rank::of(l));
        lanes.stages.emplace_back(std::move(ranks));
        if (wants_chunks(kind) && stage.lanes.size() > 1) return std::nullopt;
      }
      if (wants_chunks(kind) && !lies_in(traits_of(kind).layout, chunk_layout(lanes))) return std::nullopt;
      for (Channel channel : pipeline_.channels) {
        channel.kind = ChannelKind::kTotal;
        if (channel.from.valid() && channel.to.valid()) lanes.channels.push_back(channel);
      }
      const int m = layout_.microbatches;
      detail::LaneOrders orders(problem_.lanes.size());
      const BatchLayout full{std::vector<std::int64_t>(orders.size(), m), m};
      const Program program = make_program(lanes, full, kind);
      for (std::size_t l = 0; l < orders.size(); ++l) {
        for (const Action& action : program.ranks[l]) {
          if (is_compute(action.kind)) orders[l].push_back({action.kind, action.microbatch, action.stage});
        }
      }
      return orders;
    }

    void list_rules() {
      using Rule = detail::SynthesisRule;
      detail::ListScheduler scheduler(problem_);
      for (const double slack : {detail::kForever, 1.0, 1.2, 1.5, 2.0, 3.0}) {
        for (const auto kinds : {Rule::Kinds::kBackwardFirst, Rule::Kinds::kAlternate, Rule::Kinds::kForwardFirst,
                                 Rule::Kinds::kWeightFirst}) {
          for (const auto chunks : {Rule::Chunks::kFurthest, Rule::Chunks::kEarliest, Rule::Chunks::kNearest}) {
            for (const double patience : {0.0, 0.5, 1.0}) {
              if (budget_ <= policy_.budget / 4 || any_is_bound()) return;
              --budget_;
              const double slowest_kept = found_.size() < kKept ? detail::kForever : found_.back().makespan;
              keep(scheduler.run({.kinds = kinds, .chunks = chunks, .slack = slack, .patience = patience},
                                 slowest_kept));
            }
          }
        }
      }
    }

    [[nodiscard]] bool any_is_bound() const {
      return std::ranges::any_of(found_, [&](const OrdersFound& found) { return is_bound(found.makespan); });
    }

    /// Keeps the fastest orders, one for each makespan.
    void keep(OrdersFound made) {
      const bool known = std::ranges::any_of(found_, [&](const OrdersFound& found) {
        return found.makespan == made.makespan && found.origin == made.origin;
      });
      if (known || made.makespan == detail::kForever) return;  // infinite: aborted
      found_.push_back(std::move(made));
      std::ranges::stable_sort(found_, {}, &OrdersFound::makespan);
      if (found_.size() > kKept) found_.pop_back();
    }

    /// Repeats list scheduling with the tail of each compute action in a timeline as its urgency.
    void sharpen() {
      detail::ListScheduler scheduler(problem_);
      detail::OrderedTimeline timeline(problem_);
      for (OrdersFound found : std::vector(found_)) {
        for (int i = 0; i < kSharpenings && budget_ > policy_.budget / 4; ++i) {
          if (!timeline.play(found.orders)) break;
          const auto urgency = timeline.tails();
          --budget_;
          found = scheduler.run({.patience = i % 2 == 0 ? 0.0 : 1.0, .urgency = &urgency});
          keep(found);
        }
      }
    }

    void improve() {
      detail::OrderSearch search(problem_);
      for (std::size_t i = 0; i < found_.size(); ++i) {
        std::int64_t share = budget_ / static_cast<std::int64_t>(found_.size() - i);
        budget_ -= share;
        search.improve(found_[i], share);
        budget_ += share;
      }
    }

    /// Simulates the orders on the pipeline itself, with every rank in its lane's order.
    void judge(const OrdersFound& found) {
      GivenOrders orders{detail::LaneOrders(layout_.local.size()), layout_.microbatches};
      for (std::size_t l = 0; l < found.orders.size(); ++l) {
        for (const Rank rank : problem_.lanes[l].ranks) orders.orders[rank.index()] = found.orders[l];
      }
      const Seconds step = simulate(pipeline_, make_program(pipeline_, layout_, orders), policy_.costs).step;
      if (step >= best_.step) return;
      best_.step = step;
      best_.origin = found.origin;
      best_.orders = std::move(orders);
    }

    const Synthesised& policy_;
    const Pipeline& pipeline_;
    BatchLayout layout_;
    detail::ProblemReader<Costs> reader_;
    detail::SynthesisProblem problem_;
    std::int64_t budget_;
    std::vector<OrdersFound> found_;  // after the fixed schedules: the fastest first
    Synthesis best_;
  };
};

}  // namespace autopar
