#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/memory.hpp>
#include <autopar/plan/pipeline_of.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/shares.hpp>
#include <autopar/plan/staging.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>
#include <autopar/schedule/synthesised.hpp>

namespace autopar {

/// Marks what a planner may minimise, see `Objective`.
struct objective_policy_tag {};
struct SearchResult;

/// What a stage contributes to a step.
struct StageTerms {
  Seconds forward{};  ///< of the largest share of a micro-batch
  Seconds backward{};
  Seconds communication{};  ///< messages of one micro-batch, of the rank that has the most, both ways
  Seconds reduction{};      ///< its gradient sums, one after the other
  Seconds update{};         ///< optimizer step
  StageMemory memory;
};

/// Predicted step of one staging, with the terms that explain it.
struct StepTerms {
  Seconds step{};
  double bubble = 0;    ///< share of the step in which the average rank in use does not compute
  Seconds computing{};  ///< of the busiest rank, update included
  Seconds summing{};    ///< gradient sums of the rank that has the most
  std::vector<StageTerms> stages;
  std::vector<std::vector<Rank>> ranks;  ///< [stage][replica]
  std::vector<std::vector<Turn>> orders; ///< [rank] of a synthesised schedule
};

/// Costs of one staging as the simulator asks for them.
class StagingCosts {
 public:
  StagingCosts(const Workload& work, const Staging& staging, const SizedPipeline& sized)
      : work_(work), sized_(sized), nodes_(nodes_by_stage(staging)), known_(nodes_.size()) {}

  [[nodiscard]] Seconds forward(StageId stage, std::int64_t samples) const { return at(stage, samples).forward; }
  [[nodiscard]] Seconds backward(StageId stage, std::int64_t samples) const { return at(stage, samples).backward; }
  [[nodiscard]] Seconds backward_input(StageId stage, std::int64_t samples) const {
    return at(stage, samples).backward - at(stage, samples).backward_weight;
  }
  [[nodiscard]] Seconds backward_weight(StageId stage, std::int64_t samples) const {
    return at(stage, samples).backward_weight;
  }
  [[nodiscard]] Seconds message(Rank from, const Action& action) const {
    const auto& size = sized_.channels[static_cast<std::size_t>(action.channel)];
    return work_.transfer(
        detail::bytes_at(action.flow == Flow::kValue ? size.value : size.gradient, action.samples.size()), from,
        action.peer);
  }
  [[nodiscard]] Seconds reduce(const Action& action) const {
    const auto group = static_cast<std::size_t>(action.group);
    return work_.all_reduce(sized_.bucket_bytes[group][static_cast<std::size_t>(action.bucket)],
                            sized_.pipeline.groups[group].ranks);
  }

 private:
  struct Known {
    std::int64_t samples;
    Seconds forward, backward, backward_weight;
  };
  [[nodiscard]] const Known& at(StageId stage, std::int64_t samples) const {
    auto& row = known_[stage.index()];
    for (const Known& known : row) {
      if (known.samples == samples) return known;
    }
    Known sum{samples, {}, {}, {}};
    const auto& costs = work_.node_costs(samples);
    for (const NodeId node : nodes_[stage.index()]) {
      const Seconds totals = add_totals(stage, work_.graph[node].totals);
      sum.forward += costs[node.index()].forward + totals;
      sum.backward += costs[node.index()].backward + totals;
      sum.backward_weight += costs[node.index()].backward_weight;
    }
    return row.emplace_back(sum);
  }

  [[nodiscard]] Seconds add_totals(StageId stage, Bytes bytes) const {
    const auto& ranks = sized_.pipeline.stages[stage.index()];
    return bytes > Bytes(0) && ranks.size() > 1 ? work_.all_reduce(bytes, ranks) : Seconds{};
  }

  const Workload& work_;
  const SizedPipeline& sized_;
  std::vector<std::vector<NodeId>> nodes_;
  mutable std::vector<std::vector<Known>> known_;  // by stage; a handful of different shares
};
static_assert(SplitBackwardCosts<StagingCosts>);

/// Predicted seconds of one optimizer step: the program of an even batch on the simulator, gradient sums and the
/// optimizer's update included; and the peak memory of every stage. Refers to its arguments, which must outlive it.
/// @cost of a call: O(actions of the program), tens of microseconds for a few ranks, milliseconds for 64
class StepObjective {
 public:
  using policy_category = objective_policy_tag;
  using Solution = Staging;
  using Found = SearchResult;

  StepObjective(const Workload& work, const Cluster& cluster, const Constraints& constraints)
      : work_(work), cluster_(cluster), constraints_(constraints), shares_(constraints) {}

  [[nodiscard]] const Workload& work() const { return work_; }
  [[nodiscard]] const Cluster& cluster() const { return cluster_; }
  [[nodiscard]] const Constraints& constraints() const { return constraints_; }
  [[nodiscard]] const ShareTable& shares() const { return shares_; }

  /// Time and memory under the better placement, also of stagings that do not fit.
  [[nodiscard]] StepTerms operator()(const Staging& staging) const {
    std::optional<StepTerms> best;
    for (const Placement placement : placements(staging.replicas_of_positions(), cluster_)) {
      StepTerms terms = evaluate(staging, place(staging, placement));
      if (!best || terms.step < best->step) best = std::move(terms);
    }
    return std::move(*best);
  }

  /// Time and memory on given ranks.
  [[nodiscard]] StepTerms evaluate(const Staging& staging, std::vector<std::vector<Rank>> ranks) const {
    const SizedPipeline sized = make_pipeline(work_, staging, std::move(ranks), constraints_.world);
    const StagingCosts costs(work_, staging, sized);
    StepTerms terms;
    terms.ranks = sized.pipeline.stages;
    const BatchLayout layout{shares_.local(), staging.microbatches};
    const GivenOrders orders = orders_of(staging, sized, layout, costs);
    const auto in_flight =
        orders.orders.empty()
            ? in_flight_by_law(work_, staging)
            : in_flight_of(orders.orders, held_by_microbatch(work_, constraints_, staging, sized, shares_));
    const auto memory = predict_memory(work_, constraints_, staging, sized, shares_, in_flight);
    if (staging.schedule == ScheduleKind::kSynthesised) terms.orders = orders.orders;
    for (std::size_t s = 0; s < memory.size(); ++s)
      terms.stages.push_back({.memory = memory[s]});
    Course course(constraints_.world);
    const auto run = [&](Phase phase) {
      course.add(sized.pipeline, make_program(sized.pipeline, layout, staging.schedule, phase, orders), costs);
    };
    if (work_.loss_mode) {
      run(Phase::kStep);
    } else {
      run(Phase::kForward);
      run(Phase::kBackward);
    }
    explain(terms, staging, sized, costs, course);
    return terms;
  }

  [[nodiscard]] static Seconds seconds(const StepTerms& terms) { return terms.step; }
  /// Largest peak of any rank.
  [[nodiscard]] static Bytes peak(const StepTerms& terms) {
    return peak_of_ranks(terms.ranks, [&](std::size_t stage) { return terms.stages[stage].memory.total(); });
  }
  [[nodiscard]] bool fits(const StepTerms& terms) const { return peak(terms) <= constraints_.memory; }

 private:
  /// Phases one after the other.
  struct Course {
    explicit Course(int world)
        : busy(static_cast<std::size_t>(world)), end(busy.size()), communicating(busy.size()), summing(busy.size()) {}

    void add(const Pipeline& pipeline, const Program& actions, const StagingCosts& costs) {
      const Timeline timeline = simulate(pipeline, actions, costs);
      const Seconds before = step;
      step += timeline.step;
      for (std::size_t r = 0; r < busy.size(); ++r) {
        busy[r] += timeline.busy[r];
        end[r] = before;
        for (std::size_t i = 0; i < timeline.spans[r].size(); ++i) {
          const Span& span = timeline.spans[r][i];
          const ActionKind kind = actions.ranks[r][i].kind;
          end[r] = std::max(end[r], before + span.end);
          if (kind == ActionKind::kSend || kind == ActionKind::kReceive) communicating[r] += span.end - span.start;
          if (kind == ActionKind::kReduce) summing[r] += span.end - span.start;
        }
      }
    }
    Seconds step{};
    std::vector<Seconds> busy, end, communicating, summing;  // by rank
  };

  /// States that a synthesiser may use on one staging.
  static constexpr std::int64_t kSynthesisBudget = 200;

  /// Orders of ranks, where there is no law of memory for single stages; none for the other schedules.
  [[nodiscard]] GivenOrders orders_of(const Staging& staging, const SizedPipeline& sized, const BatchLayout& layout,
                                      const StagingCosts& costs) const {
    const Pipeline& pipeline = sized.pipeline;
    const int microbatches = staging.microbatches;
    switch (staging.schedule) {
      case ScheduleKind::kInterleaved: return {Interleaved{}.rank_orders(pipeline, microbatches), microbatches};
      case ScheduleKind::kZbV: return {ZbV{}.rank_orders(pipeline, microbatches), microbatches};
      case ScheduleKind::kSynthesised: break;
      default: return {};
    }
    Synthesised<StagingCosts> policy{.costs = costs, .local = layout.local,
                                     .held = held_by_microbatch(work_, constraints_, staging, sized, shares_),
                                     .budget = kSynthesisBudget};
    const std::vector<int> none(staging.replicas.size(), 0);
    const auto fixed = predict_memory(work_, constraints_, staging, sized, shares_, none);
    policy.limits.assign(static_cast<std::size_t>(pipeline.ranks), constraints_.memory);
    std::vector<Bytes> least(policy.limits.size());
    for (std::size_t s = 0; s < fixed.size(); ++s) {
      for (const Rank rank : pipeline.stages[s]) {
        policy.limits[rank.index()] -= fixed[s].total();
        least[rank.index()] += policy.held[s];
      }
    }
    for (std::size_t r = 0; r < least.size(); ++r) {  // it cannot fit: the time that it would take is still of interest
      if (least[r] > policy.limits[r]) policy.limits.clear();
      if (policy.limits.empty()) break;
    }
    return policy.synthesise(pipeline, microbatches).orders;
  }

  void explain(StepTerms& terms, const Staging& staging, const SizedPipeline& sized, const StagingCosts& costs,
               const Course& course) const {
    terms.step = course.step;
    std::vector<Seconds> updates(course.busy.size());  // of all stages of a rank
    for (std::size_t s = 0; s < terms.stages.size(); ++s) {
      StageTerms& stage = terms.stages[s];
      const auto share = shares_.at(staging.microbatches, staging.replicas[s], staging.stages()).largest;
      stage.forward = costs.forward(StageId::of(s), share);
      stage.backward = costs.backward(StageId::of(s), share);
      stage.update = work_.update(trainable_bytes(staging, static_cast<int>(s)), constraints_.optimizer_state_factor);
      for (const Rank rank : sized.pipeline.stages[s]) updates[rank.index()] += stage.update;
    }
    double busy = 0;
    int used = 0;
    std::vector<bool> counted(updates.size(), false);
    for (std::size_t s = 0; s < terms.stages.size(); ++s) {
      StageTerms& stage = terms.stages[s];
      for (const Rank rank : sized.pipeline.stages[s]) {
        const std::size_t r = rank.index();
        stage.communication = std::max(stage.communication, course.communicating[r] / staging.microbatches);
        stage.reduction = std::max(stage.reduction, course.summing[r]);
        if (counted[r]) continue;
        counted[r] = true;
        terms.step = std::max(terms.step, course.end[r] + updates[r]);
        terms.computing = std::max(terms.computing, course.busy[r] + updates[r]);
        busy += (course.busy[r] + updates[r]).value();
        ++used;
      }
      terms.summing = std::max(terms.summing, stage.reduction);
    }
    terms.bubble = terms.step.value() > 0 ? std::max(0.0, 1 - busy / (used * terms.step.value())) : 0;
  }

  [[nodiscard]] Bytes trainable_bytes(const Staging& staging, int stage) const {
    Bytes sum{};
    std::vector<bool> counted(work_.parameters.size(), false);
    for (const NodeId node : work_.graph.nodes()) {
      if (staging.stage_of[node.index()] != stage) continue;
      for (const ParameterId parameter : work_.graph[node].parameters) {
        if (counted[parameter.index()] || !work_.parameters[parameter.index()].trainable) continue;
        counted[parameter.index()] = true;
        sum += work_.parameters[parameter.index()].bytes;
      }
    }
    return sum;
  }

  const Workload& work_;
  const Cluster& cluster_;
  const Constraints& constraints_;
  ShareTable shares_;
};

}  // namespace autopar
