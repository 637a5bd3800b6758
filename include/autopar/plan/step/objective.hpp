#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/memory/recompute_choice.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/step/folded.hpp>
#include <autopar/plan/step/step_terms.hpp>
#include <autopar/schedule/synthesised.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Marks what a planner may minimise, see `Objective`.
struct objective_policy_tag {};
struct SearchResult;

/// Predicts the seconds of one optimizer step, and the peak memory of every stage. It simulates the program of an even
/// batch and includes gradient sums and the optimizer's update. Refers to its arguments, which must outlive it.
/// @cost of a call: O(actions of the program), tens of microseconds for a few ranks, milliseconds for 64
class StepObjective {
 public:
  using policy_category = objective_policy_tag;
  using Solution = Staging;
  using Found = SearchResult;
  static constexpr Seconds kNoLimit{std::numeric_limits<double>::infinity()};

  StepObjective(const Workload& work, const Cluster& cluster, const Constraints& constraints)
      : work_(work), cluster_(cluster), constraints_(constraints), slices_(constraints) {
    if (constraints.tensor > 1 && !work.regions.empty())
      least_ = std::make_shared<const Workload>(least_in_shards(work, constraints.tensor));
    std::int64_t count = 0;
    Bytes trainable{};
    for (const ParameterProfile& parameter : work.parameters) {
      trainable += parameter.trainable ? parameter.bytes : Bytes(0);
      count += parameter.trainable ? 1 : 0;
    }
    buckets_ = std::min(count, trainable.value() / constraints.buckets.size.value() + 1);
  }

  /// The workload that is searched; with tensor shards, a lower bound on what they take.
  [[nodiscard]] const Workload& work() const { return least_ ? *least_ : work_; }
  /// The workload without tensor shards.
  [[nodiscard]] const Workload& whole() const { return work_; }
  /// The same under other constraints. @pre they outlive it
  [[nodiscard]] StepObjective under(const Constraints& constraints) const {
    return StepObjective(work_, cluster_, constraints);
  }
  /// The pipeline of a staging on given ranks.
  [[nodiscard]] SizedPipeline pipeline(const Staging& staging, std::vector<Mesh> meshes) const {
    return make_pipeline(as_run(staging), staging, std::move(meshes), constraints_.ranks(), constraints_.buckets);
  }
  [[nodiscard]] const Cluster& cluster() const { return cluster_; }
  [[nodiscard]] const Constraints& constraints() const { return constraints_; }
  [[nodiscard]] const SliceTable& slices() const { return slices_; }

  /// Time and memory under the best placement and memory optimizations, also of stagings that do not fit. With many
  /// actions, placement and ZeRO level are those that are best if each stage's replicas count as one.
  /// @param limit  longer steps need only a rough prediction: with many actions, that of `folded`
  [[nodiscard]] StepTerms operator()(const Staging& staging, Seconds limit = kNoLimit) const {
    if (is_compared_first(staging)) return simulated(staging, folded(staging), limit);
    return best_placed<detail::PlayedPipeline>(staging);
  }

  /// Likewise, for a staging that was compared. @param choice  what `folded` returned for it
  [[nodiscard]] StepTerms simulated(const Staging& staging, StepTerms choice, Seconds limit = kNoLimit) const {
    if (!is_compared_first(staging)) return (*this)(staging, limit);
    if (choice.step > limit * (1 + kFoldedAbove)) return choice;
    return evaluate(staging, pipeline(staging, std::move(choice.meshes)), std::move(choice.optimizations));
  }

  /// Time and memory on given ranks, under the best memory optimizations.
  ///
  /// For each ZeRO level, offloaded or not, the fewest segments with which the ranks fit are recomputed, those first
  /// that free most bytes per second. Recomputing more shortens no compute action, so it is never faster.
  [[nodiscard]] StepTerms evaluate(const Staging& staging, std::vector<Mesh> meshes) const {
    std::optional<StepTerms> best;
    keep_best<detail::PlayedPipeline>(best, staging, std::move(meshes));
    return std::move(*best);
  }

  using Orders = detail::Orders;

  /// Time and memory on given ranks, under given memory optimizations.
  /// @param orders  [rank] of a synthesised schedule; if empty, they are synthesised
  [[nodiscard]] StepTerms evaluate(const Staging& staging, const SizedPipeline& sized,
                                   MemoryOptimizations optimizations, Orders orders = {}) const {
    std::optional<detail::PlayedPipeline> played;
    return timed(staging, sized, std::move(optimizations), std::move(orders), played);
  }

  /// The prediction of a staging of blocks, with the memory of their nodes, which is at most that of the blocks.
  [[nodiscard]] StepTerms of_nodes(const Staging& staging, StepTerms terms) const {
    set_memory(terms, staging, pipeline(staging, terms.meshes));
    return terms;
  }

  /// The memory as it is, and the step if each stage's replicas count as one. Messages are those of the replica, or
  /// caller, that has most. For comparing many stagings on many ranks: within a few per cent of the step. Where slices
  /// of neighbouring stages do not align, replicas wait for one another, and the step may be half as long again.
  /// @pre the schedule is not synthesised
  /// @cost O(actions of one rank a position)
  [[nodiscard]] StepTerms folded(const Staging& staging) const { return best_placed<detail::FoldedTimeline>(staging); }

  /// Likewise on given ranks, under given memory optimizations; the schedule may be synthesised.
  /// @param orders  as for `evaluate`
  [[nodiscard]] StepTerms folded(const Staging& staging, const SizedPipeline& sized, MemoryOptimizations optimizations,
                                 Orders orders = {}) const {
    std::optional<detail::FoldedTimeline> timeline;
    return timed(staging, sized, std::move(optimizations), std::move(orders), timeline);
  }

  /// Of a staging with synthesised orders, on the ranks and with the memory optimizations of a prediction that they
  /// start from.
  /// @param limit  as above
  [[nodiscard]] StepTerms with_orders(const Staging& staging, StepTerms start, Seconds limit = kNoLimit) const {
    const SizedPipeline sized = pipeline(staging, std::move(start.meshes));
    StepTerms terms = folded(staging, sized, std::move(start.optimizations));
    if (terms.step > limit * (1 + kFoldedAbove)) return terms;
    return evaluate(staging, sized, std::move(terms.optimizations), std::move(terms.orders));
  }

  /// With the fewest segments to recompute with which the ranks fit; if they cannot fit, those with the least memory.
  /// @param out     nothing recomputed yet
  /// @param memory  that the ranks should fit
  [[nodiscard]] MemoryOptimizations optimizations(const Staging& staging, const SizedPipeline& sized,
                                                  MemoryOptimizations out, Bytes memory) const {
    if (constraints_.recompute == Recompute::kNever) return out;
    const auto in_flight = in_flight_in(staging, sized, out);
    if (constraints_.recompute == Recompute::kToFit &&
        peak(sized.pipeline.stages, memory_of(staging, sized, in_flight, out)) <= memory)
      return out;
    const SizedStages stages = stages_of(staging, sized, out);
    const auto segments = detail::segments_in_stages(stages.work, staging);
    const detail::RecomputeChoice choice(stages, segments, in_flight, fixed_of(staging, out));
    out.recomputed = choice.chosen(constraints_.recompute == Recompute::kAlways ? std::nullopt : std::optional(memory));
    return out;
  }

  /// About how many actions one simulation of a staging has: compute actions, their messages, and gradient sums.
  [[nodiscard]] std::int64_t actions(const Staging& staging) const {
    const auto positions = staging.replicas_of_positions();
    const auto chunks = static_cast<std::int64_t>(staging.replicas.size() / positions.size());
    return (6 * chunks * staging.microbatches + buckets_ / static_cast<std::int64_t>(positions.size())) *
           shaped(staging).ranks();
  }

  /// The most memory optimizations and placements that are predicted for a staging, of which the best counts.
  [[nodiscard]] std::int64_t variants(const Staging& staging) const {
    return static_cast<std::int64_t>(all_optimizations(staging).size() * placements(staging).size());
  }

  /// Elementary steps that `folded` takes.
  [[nodiscard]] std::int64_t comparison(const Staging& staging) const {
    return 6 * std::int64_t{staging.microbatches} * staging.stages() + std::int64_t{4} * shaped(staging).ranks() +
           buckets_;
  }

  /// Part of the step by which `folded` may exceed it, unless replicas are very uneven.
  static constexpr double kFoldedAbove = 0.03;
  /// Part of `folded` by which the step exceeds it at most if slices align.
  static constexpr double kFoldedClose = 0.05;

  /// The memory of each stage under the memory optimizations that leave least, by the laws of schedules with one stage
  /// a rank. Nothing is offloaded that the host cannot hold, unless it must be.
  [[nodiscard]] std::vector<StageMemory> least_memory(const Staging& staging) const {
    const auto meshes = placed(staging, RankPlacement::kReplicasTogether);
    const SizedPipeline sized = pipeline(staging, meshes);
    const auto in_flight = in_flight_by_law(work_, staging, samples_in_flight(staging, slices_));
    std::vector<StageMemory> least;  // units that are whole may take more than shards save
    std::pair<bool, Bytes> least_of{};
    for (const MemoryOptimizations& each : all_optimizations(staging)) {
      auto memory = memory_of(staging, sized, in_flight, optimizations(staging, sized, each, Bytes(0)));
      const auto worst = std::ranges::max_element(memory, {}, &StageMemory::total);
      const std::pair own(!host_holds(meshes, memory), worst->total());
      if (!least.empty() && !(own < least_of)) continue;
      least = std::move(memory);
      least_of = own;
    }
    return least;
  }

  /// False if it is known without simulation that the staging fits under none of the memory optimizations that would be
  /// tried. For synthesised orders, if it fits under none.
  [[nodiscard]] bool may_fit(const Staging& staging) const {
    const auto meshes = placed(staging, RankPlacement::kReplicasTogether);
    const SizedPipeline sized = pipeline(staging, meshes);
    const bool synthesised = traits_of(staging.schedule).orders_in_plan;
    return std::ranges::any_of(all_optimizations(staging), [&](const MemoryOptimizations& each) {
      const MemoryOptimizations own = optimizations(staging, sized, each, constraints_.memory);
      const auto in_flight =
          synthesised ? std::vector<InFlight>(staging.replicas.size()) : in_flight_in(staging, sized, own);
      const auto memory = memory_of(staging, sized, in_flight, own);
      return peak(meshes, memory) <= constraints_.memory && host_holds(meshes, memory);
    });
  }

  [[nodiscard]] static Seconds seconds(const StepTerms& terms) { return terms.step; }
  /// Largest peak of any rank.
  [[nodiscard]] static Bytes peak(const StepTerms& terms) {
    return peak_of_ranks(terms.meshes, [&](std::size_t stage) { return terms.stages[stage].memory.total(); });
  }
  /// Likewise in host memory.
  [[nodiscard]] static Bytes host_peak(const StepTerms& terms) {
    return peak_of_ranks(terms.meshes, [&](std::size_t stage) { return terms.stages[stage].memory.host; });
  }
  [[nodiscard]] static bool fits(const StepTerms& terms, Bytes memory) {
    return terms.host_holds && peak(terms) <= memory;
  }
  [[nodiscard]] bool fits(const StepTerms& terms) const { return fits(terms, constraints_.memory); }
  /// Whether the hosts have room for what these stages offload.
  [[nodiscard]] bool host_holds(const std::vector<Mesh>& meshes, const std::vector<StageMemory>& stages) const {
    return !constraints_.host_memory ||
           peak_of_ranks(meshes, [&](std::size_t stage) { return stages[stage].host; }) <= *constraints_.host_memory;
  }

 private:
  [[nodiscard]] static Bytes peak(const std::vector<Mesh>& meshes, const std::vector<StageMemory>& stages) {
    return peak_of_ranks(meshes, [&](std::size_t stage) { return stages[stage].total(); });
  }
  /// With the tensor shards of its stages, which stagings of a search do not state.
  [[nodiscard]] Staging shaped(Staging staging) const {
    if (staging.tensor.empty()) staging.tensor = constraints_.tensor_of_each(staging.replicas.size());
    return staging;
  }
  [[nodiscard]] std::vector<Mesh> placed(const Staging& staging, RankPlacement placement) const {
    return place(shaped(staging), placement);
  }
  [[nodiscard]] std::vector<RankPlacement> placements(const Staging& staging) const {
    return rank_placements(staging.replicas_of_positions(), cluster_, shaped(staging).tensor_of_positions());
  }
  [[nodiscard]] bool has_tensor_shards(const Staging& staging) const {
    return constraints_.tensor > 1 || std::ranges::any_of(staging.tensor, [](int shards) { return shards > 1; });
  }
  /// The workload as the stages of a staging compute it; valid until another staging's is requested.
  [[nodiscard]] const Workload& as_run(const Staging& staging, bool sequence = false) const {
    if (work_.regions.empty() || !has_tensor_shards(staging)) return work_;
    Run& run = sequence ? sequence_run_ : run_;
    if (!run.work || run.staging != staging)
      run = {staging, std::make_shared<const Workload>(in_shards(work_, shaped(staging), sequence))};
    return *run.work;
  }

  /// Keeps the best prediction on given ranks under any memory optimizations. Offloading what fits without it is never
  /// faster.
  template <class Clock>
  void keep_best(std::optional<StepTerms>& best, const Staging& staging, std::vector<Mesh> meshes) const {
    const SizedPipeline sized = pipeline(staging, std::move(meshes));
    std::optional<Clock> clock;
    bool fits_as_it_is = false;
    for (const MemoryOptimizations& each : all_optimizations(staging)) {
      if (each.offload == constraints_.offloads.front()) fits_as_it_is = false;
      if (fits_as_it_is) continue;
      StepTerms terms = timed(staging, sized, optimizations(staging, sized, each, constraints_.memory), {}, clock);
      fits_as_it_is = fits(terms) && !terms.optimizations.recomputes();
      if (!best || is_better(terms, *best)) best = std::move(terms);
    }
  }
  template <class Clock>
  [[nodiscard]] StepTerms best_placed(const Staging& staging) const {
    std::optional<StepTerms> best;
    for (const RankPlacement placement : placements(staging))
      keep_best<Clock>(best, staging, placed(staging, placement));
    return std::move(*best);
  }
  /// The memory optimizations that may be tried for a staging, nothing recomputed. Places of the optimizer vary
  /// fastest. Without replicas there is nothing to shard, so ZeRO levels do not differ.
  [[nodiscard]] std::vector<MemoryOptimizations> all_optimizations(const Staging& staging) const {
    std::vector<MemoryOptimizations> out;
    const bool replicated = std::ranges::any_of(staging.replicas, [](int replicas) { return replicas > 1; });
    for (const bool sequence : has_tensor_shards(staging) ? constraints_.sequences : std::vector<bool>{false}) {
      for (const int level : constraints_.zero_levels) {
        if (!replicated && level != constraints_.zero_levels.front()) break;
        for (const Offload offload : constraints_.offloads) out.push_back({level, {}, offload, sequence});
      }
    }
    return out;
  }

  [[nodiscard]] bool is_compared_first(const Staging& staging) const {
    return actions(staging) > constraints_.budget.many_actions && !traits_of(staging.schedule).orders_in_plan;
  }

  /// @param clock  of the same staging on the same ranks; simulated again unless its compute actions last as long
  template <class Clock>
  [[nodiscard]] StepTerms timed(const Staging& staging, const SizedPipeline& sized, MemoryOptimizations optimizations,
                                Orders orders, std::optional<Clock>& clock) const {
    const Workload& run = as_run(staging, optimizations.sequence);
    const StagingCosts costs(run, staging, sized, optimizations);
    StepTerms terms;
    terms.meshes = sized.pipeline.stages;
    if (traits_of(staging.schedule).orders_in_plan)
      terms.orders = orders.empty() ? orders_of(staging, sized, costs, optimizations) : std::move(orders);
    terms.optimizations = std::move(optimizations);
    terms.stages.resize(terms.meshes.size());
    set_memory(terms, staging, sized);
    if (!terms.orders.empty() || !clock || !clock->holds_for(costs))
      clock.emplace(run, staging, sized, slices_, terms.orders, costs);
    explain(terms, staging, sized, costs, clock->timeline(costs));
    return terms;
  }

  /// Sets the memory, given everything else in the terms.
  void set_memory(StepTerms& terms, const Staging& staging, const SizedPipeline& sized) const {
    const auto in_flight = in_flight_in(staging, sized, terms.optimizations, terms.orders);
    const auto stages = memory_of(staging, sized, in_flight, terms.optimizations);
    terms.host_holds = host_holds(terms.meshes, stages);
    for (std::size_t s = 0; s < stages.size(); ++s) terms.stages[s].memory = stages[s];
  }

  /// What fits comes before what does not, then the shorter step.
  [[nodiscard]] bool is_better(const StepTerms& a, const StepTerms& b) const {
    return std::pair(!fits(a), a.step) < std::pair(!fits(b), b.step);
  }

  /// Micro-batches that each stage holds; an estimate for schedules whose orders are still to be synthesised. Replicas
  /// of a stage are alike. Results that leave the call are all forward before the first backward, whatever the orders.
  /// @param orders  [rank] of a synthesised schedule, if they are known
  [[nodiscard]] std::vector<InFlight> in_flight_in(const Staging& staging, const SizedPipeline& sized,
                                                   const MemoryOptimizations& optimizations,
                                                   const Orders& orders = {}) const {
    const bool unknown = traits_of(staging.schedule).orders_in_plan && orders.empty();
    if (has_closed_form(staging.schedule) || unknown || !work_.loss_mode)
      return in_flight_by_law(work_, staging, samples_in_flight(staging, slices_));
    const HeldByMicrobatch held = held_in(staging, sized, optimizations);
    if (!orders.empty()) return in_flight_of(orders, held);
    const Pipeline positions = detail::one_rank_a_position(staging);
    return in_flight_of(
        with_policy(staging.schedule,
                    [&](const auto& policy) { return rank_orders_of(policy, positions, staging.microbatches); }),
        held);
  }
  [[nodiscard]] HeldByMicrobatch held_in(const Staging& staging, const SizedPipeline& sized,
                                         const MemoryOptimizations& optimizations) const {
    return held_by_microbatch(stages_of(staging, sized, optimizations), optimizations,
                              fixed_of(staging, optimizations));
  }

  [[nodiscard]] SizedStages stages_of(const Staging& staging, const SizedPipeline& sized,
                                      const MemoryOptimizations& optimizations) const {
    return sized_stages(as_run(staging, optimizations.sequence), staging, sized, slices_);
  }

  /// `predict_memory`; what depends on neither micro-batches in flight nor recomputation is cached for a staging.
  [[nodiscard]] std::vector<StageMemory> memory_of(const Staging& staging, const SizedPipeline& sized,
                                                   const std::vector<InFlight>& in_flight,
                                                   const MemoryOptimizations& optimizations) const {
    return predict_memory(stages_of(staging, sized, optimizations), in_flight, optimizations,
                          fixed_of(staging, optimizations));
  }
  [[nodiscard]] const std::vector<StageMemory>& fixed_of(const Staging& staging,
                                                         const MemoryOptimizations& optimizations) const {
    if (fixed_.staging != staging) fixed_ = {staging, {}};
    const auto [entry, added] =
        fixed_.by_optimizations.try_emplace({optimizations.zero, optimizations.offload, optimizations.sequence});
    if (added)
      entry->second = fixed_memory(as_run(staging, optimizations.sequence), constraints_, staging, optimizations.zero,
                                   optimizations.offload);
    return entry->second;
  }

  /// Synthesised orders of the ranks.
  [[nodiscard]] Orders orders_of(const Staging& staging, const SizedPipeline& sized, const StagingCosts& costs,
                                 const MemoryOptimizations& optimizations) const {
    const Pipeline& pipeline = sized.pipeline;
    const int microbatches = staging.microbatches;
    if (actions(staging) <= constraints_.budget.synthesised_actions)
      return synthesised(staging, sized, optimizations, pipeline, {slices_.local(), microbatches}, costs);
    // Replicas run their compute actions in the same order, so one of each decides it.
    const detail::FoldedPipeline folded(as_run(staging, optimizations.sequence), staging, sized, slices_, microbatches,
                                        costs);
    const Orders of_positions = synthesised(staging, sized, optimizations, folded.pipeline(), folded.layout(), folded);
    Orders orders(static_cast<std::size_t>(pipeline.ranks));
    for (int s = 0; s < staging.stages(); ++s) {
      for (const Rank rank : pipeline.stages[static_cast<std::size_t>(s)].ranks())
        orders[rank.index()] = of_positions[static_cast<std::size_t>(staging.position(s))];
    }
    return orders;
  }

  /// @param pipeline  of the staging, or with one rank a position
  template <SplitBackwardCosts Costs>
  [[nodiscard]] Orders synthesised(const Staging& staging, const SizedPipeline& sized,
                                   const MemoryOptimizations& optimizations, const Pipeline& pipeline,
                                   const BatchLayout& layout, const Costs& costs) const {
    Synthesised<Costs> policy{
        .costs = costs, .local = layout.local, .held = {}, .budget = constraints_.budget.synthesised_orders};
    const HeldByMicrobatch bytes = held_in(staging, sized, optimizations);
    for (std::size_t s = 0; s < bytes.read.size(); ++s)
      policy.held.push_back(std::max(bytes.whole[s], bytes.waiting[s]) + bytes.read[s]);
    const std::vector<InFlight> none(staging.replicas.size());
    const auto fixed = memory_of(staging, sized, none, optimizations);
    policy.limits.assign(static_cast<std::size_t>(pipeline.ranks), constraints_.memory);
    std::vector<Bytes> least(policy.limits.size());
    for (std::size_t s = 0; s < fixed.size(); ++s) {
      for (const Rank rank : pipeline.stages[s].ranks()) {
        policy.limits[rank.index()] -= fixed[s].total();
        least[rank.index()] += policy.held[s];
      }
    }
    const bool fits = std::ranges::equal(least, policy.limits, std::ranges::less_equal{});
    if (!fits) policy.limits.clear();  // the time that it would take is still of interest
    return policy.synthesise(pipeline, layout.microbatches).orders.orders;
  }

  void explain(StepTerms& terms, const Staging& staging, const SizedPipeline& sized, const StagingCosts& costs,
               const detail::CallTimeline& timeline) const {
    terms.step = timeline.step;
    std::vector<Seconds> updates(timeline.busy.size());  // of all stages of a rank
    const auto slice = largest_slices(staging, slices_);
    for (std::size_t s = 0; s < terms.stages.size(); ++s) {
      StageTerms& stage = terms.stages[s];
      stage.forward = costs.forward(StageId::of(s), slice[s]);
      stage.backward = costs.backward(StageId::of(s), slice[s]);
      stage.update = costs.update(StageId::of(s), constraints_.optimizer_state_factor);
      for (const Rank rank : sized.pipeline.stages[s].ranks()) updates[rank.index()] += stage.update;
    }
    double busy = 0;
    int used = 0;
    std::vector<bool> counted(updates.size(), false);
    for (std::size_t s = 0; s < terms.stages.size(); ++s) {
      StageTerms& stage = terms.stages[s];
      for (const Rank rank : sized.pipeline.stages[s].ranks()) {
        const std::size_t r = rank.index();
        stage.communication = std::max(stage.communication, timeline.communicating[r] / staging.microbatches);
        stage.reduction = std::max(stage.reduction, timeline.summing[r]);
        if (counted[r]) continue;
        counted[r] = true;
        terms.step = std::max(terms.step, timeline.end[r] + updates[r]);
        terms.computing = std::max(terms.computing, timeline.busy[r] + updates[r]);
        busy += (timeline.busy[r] + updates[r]).value();
        ++used;
      }
      terms.summing = std::max(terms.summing, stage.reduction);
    }
    terms.bubble = terms.step.value() > 0 ? std::max(0.0, 1 - busy / (used * terms.step.value())) : 0;
  }

  const Workload& work_;
  const Cluster& cluster_;
  const Constraints& constraints_;
  SliceTable slices_;
  struct Fixed {
    Staging staging;
    std::map<std::tuple<int, Offload, bool>, std::vector<StageMemory>> by_optimizations;
  };
  mutable Fixed fixed_;  // of the last staging
  struct Run {
    Staging staging;
    std::shared_ptr<const Workload> work;
  };
  mutable Run run_, sequence_run_;         // likewise
  std::shared_ptr<const Workload> least_;  // of tensor shards
  std::int64_t buckets_ = 0;               // of gradients, about
};

}  // namespace autopar
