#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/memory/recompute_choice.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/slices.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/step/folded.hpp>
#include <autopar/plan/step/staging_costs.hpp>
#include <autopar/plan/step/step_terms.hpp>
#include <autopar/plan/step/timeline.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>
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
    return make_pipeline(as_run(staging), staging, std::move(meshes), constraints_);
  }
  [[nodiscard]] const Cluster& cluster() const { return cluster_; }
  [[nodiscard]] const Constraints& constraints() const { return constraints_; }
  [[nodiscard]] const SliceTable& slices() const { return slices_; }

  /// Time and memory under the best placement and memory optimizations, also of stagings that do not fit. With many
  /// actions, placement and ZeRO level are those that are best if each stage's replicas count as one.
  /// @param limit  longer steps need only a rough prediction: with many actions, that of `folded`
  [[nodiscard]] StepTerms operator()(const Staging& staging,
                                     Seconds limit = Seconds(std::numeric_limits<double>::infinity())) const {
    if (is_compared_first(staging)) return simulated(staging, folded(staging), limit);
    std::optional<StepTerms> best;
    for (const RankPlacement placement : placements(staging))
      keep_better(best, evaluate(staging, placed(staging, placement)));
    return std::move(*best);
  }

  /// Likewise, for a staging that was compared. @param choice  what `folded` returned for it
  [[nodiscard]] StepTerms simulated(const Staging& staging, StepTerms choice,
                                    Seconds limit = Seconds(std::numeric_limits<double>::infinity())) const {
    if (!is_compared_first(staging)) return (*this)(staging, limit);
    if (choice.step > limit * (1 + kFoldedAbove)) return choice;
    const SizedPipeline sized = make_pipeline(as_run(staging), staging, std::move(choice.meshes), constraints_);
    return evaluate(staging, sized, std::move(choice.optimizations));
  }

  /// Time and memory on given ranks, under the best memory optimizations.
  ///
  /// For each ZeRO level, offloaded or not, the fewest segments with which the ranks fit are recomputed, those first
  /// that free most bytes per second. Recomputing more shortens no compute action, so it is never faster.
  [[nodiscard]] StepTerms evaluate(const Staging& staging, std::vector<Mesh> meshes) const {
    const SizedPipeline sized = make_pipeline(as_run(staging), staging, std::move(meshes), constraints_);
    std::optional<StepTerms> best;
    std::optional<detail::PlayedPipeline> played;
    keep_best_optimizations(best, staging, sized, [&](MemoryOptimizations optimizations) {
      return evaluate(staging, sized, std::move(optimizations), {}, played);
    });
    return std::move(*best);
  }

  using Orders = std::vector<std::vector<ComputeAction>>;

  /// Time and memory on given ranks, under given memory optimizations.
  /// @param orders  [rank] of a synthesised schedule; if empty, they are synthesised
  [[nodiscard]] StepTerms evaluate(const Staging& staging, const SizedPipeline& sized,
                                   MemoryOptimizations optimizations, Orders orders = {}) const {
    std::optional<detail::PlayedPipeline> played;
    return evaluate(staging, sized, std::move(optimizations), std::move(orders), played);
  }

  /// The prediction of a staging of blocks, with the memory of their nodes, which is at most that of the blocks.
  [[nodiscard]] StepTerms of_nodes(const Staging& staging, StepTerms terms) const {
    set_memory(terms, staging, make_pipeline(as_run(staging), staging, terms.meshes, constraints_));
    return terms;
  }

  /// The memory as it is, and the step if each stage's replicas count as one. Messages are those of the replica, or
  /// caller, that has most. For comparing many stagings on many ranks: within a few per cent of the step. Where slices
  /// of neighbouring stages do not align, replicas wait for one another, and the step may be half as long again.
  /// @pre the schedule is not synthesised
  /// @cost O(actions of one rank a position)
  [[nodiscard]] StepTerms folded(const Staging& staging) const {
    std::optional<StepTerms> best;
    for (const RankPlacement placement : placements(staging)) {
      const SizedPipeline sized = make_pipeline(as_run(staging), staging, placed(staging, placement), constraints_);
      std::optional<detail::FoldedTimeline> timeline;
      keep_best_optimizations(best, staging, sized, [&](MemoryOptimizations optimizations) {
        return folded(staging, sized, std::move(optimizations), {}, timeline);
      });
    }
    return std::move(*best);
  }

  /// Likewise on given ranks, under given memory optimizations; the schedule may be synthesised.
  /// @param orders  as for `evaluate`
  [[nodiscard]] StepTerms folded(const Staging& staging, const SizedPipeline& sized, MemoryOptimizations optimizations,
                                 Orders orders = {}) const {
    std::optional<detail::FoldedTimeline> timeline;
    return folded(staging, sized, std::move(optimizations), std::move(orders), timeline);
  }

  /// The fewest segments to recompute with which the ranks fit under a ZeRO level; if they cannot fit, those with the
  /// least memory.
  [[nodiscard]] MemoryOptimizations optimizations(const Staging& staging, const SizedPipeline& sized, int zero,
                                                  Offload offload = Offload::kNone, bool sequence = false) const {
    return optimizations(staging, sized, MemoryOptimizations{zero, {}, offload, sequence}, constraints_.memory);
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
    return static_cast<std::int64_t>(sequences(staging).size() * zero_levels(staging).size() *
                                     constraints_.offloads.size() * placements(staging).size());
  }

  /// Elementary steps that `folded` takes.
  [[nodiscard]] std::int64_t comparison(const Staging& staging) const {
    return 6 * std::int64_t{staging.microbatches} * staging.stages() + std::int64_t{4} * shaped(staging).ranks() +
           buckets_;
  }

  /// Part of the step by which `folded` may exceed it, unless replicas are very uneven.
  static constexpr double kFoldedAbove = 0.02;
  /// Part of `folded` by which the step exceeds it at most if slices align.
  static constexpr double kFoldedClose = 0.05;

  /// The memory of each stage under the memory optimizations that leave least, by the laws of schedules with one stage
  /// a rank. Nothing is offloaded that the host cannot hold, unless it must be.
  [[nodiscard]] std::vector<StageMemory> least_memory(const Staging& staging) const {
    const auto meshes = placed(staging, RankPlacement::kReplicasTogether);
    const SizedPipeline sized = make_pipeline(as_run(staging), staging, meshes, constraints_);
    const auto worst = [](const std::vector<StageMemory>& memory) {
      Bytes most{};
      for (const StageMemory& stage : memory) most = std::max(most, stage.total());
      return most;
    };
    const auto in_flight = in_flight_by_law(as_run(staging), staging);
    std::vector<StageMemory> least;  // units that are whole may take more than shards save
    std::pair<bool, Bytes> least_of{};
    for (const MemoryOptimizations& each : all_optimizations(staging)) {
      auto memory = memory_of(staging, sized, in_flight, optimizations(staging, sized, each, Bytes(0)));
      const std::pair own(!host_holds(meshes, memory), worst(memory));
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
    const SizedPipeline sized = make_pipeline(as_run(staging), staging, meshes, constraints_);
    const bool synthesised = traits_of(staging.schedule).orders_in_plan;
    return std::ranges::any_of(all_optimizations(staging), [&](const MemoryOptimizations& each) {
      const MemoryOptimizations own = optimizations(staging, sized, each, constraints_.memory);
      const auto in_flight =
          synthesised ? std::vector<InFlight>(staging.replicas.size()) : in_flight_of_positions(staging, sized, own);
      const auto memory = memory_of(staging, sized, in_flight, own);
      const auto total = [&](std::size_t stage) { return memory[stage].total(); };
      return peak_of_ranks(meshes, total) <= constraints_.memory && host_holds(meshes, memory);
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

  /// Keeps the best of what `terms_of` returns for the memory optimizations. Offloading what fits without it is never
  /// faster.
  template <class TermsOf>
  void keep_best_optimizations(std::optional<StepTerms>& best, const Staging& staging, const SizedPipeline& sized,
                               const TermsOf& terms_of) const {
    bool fits_as_it_is = false;
    for (const MemoryOptimizations& each : all_optimizations(staging)) {
      if (each.offload == constraints_.offloads.front()) fits_as_it_is = false;
      if (fits_as_it_is) continue;
      StepTerms terms = terms_of(optimizations(staging, sized, each, constraints_.memory));
      fits_as_it_is = fits(terms) && !terms.optimizations.recomputes();
      keep_better(best, std::move(terms));
    }
  }
  /// The memory optimizations that may be tried for a staging, nothing recomputed. Places of the optimizer vary
  /// fastest.
  [[nodiscard]] std::vector<MemoryOptimizations> all_optimizations(const Staging& staging) const {
    std::vector<MemoryOptimizations> out;
    for (const bool sequence : sequences(staging)) {
      for (const int level : zero_levels(staging)) {
        for (const Offload offload : constraints_.offloads) out.push_back({level, {}, offload, sequence});
      }
    }
    return out;
  }
  [[nodiscard]] std::vector<bool> sequences(const Staging& staging) const {
    return has_tensor_shards(staging) ? constraints_.sequences : std::vector<bool>{false};
  }

  [[nodiscard]] bool is_compared_first(const Staging& staging) const {
    return actions(staging) > constraints_.budget.many_actions && !traits_of(staging.schedule).orders_in_plan;
  }

  /// The ZeRO levels that differ: without replicas there is nothing to shard.
  [[nodiscard]] std::span<const int> zero_levels(const Staging& staging) const {
    const bool replicated = std::any_of(staging.replicas.begin(), staging.replicas.end(), [](int r) { return r > 1; });
    const std::span<const int> all(constraints_.zero_levels);
    return replicated ? all : all.first(1);
  }

  /// @param played  of the same staging on the same ranks; simulated again unless its compute actions last as long
  [[nodiscard]] StepTerms evaluate(const Staging& staging, const SizedPipeline& sized,
                                   MemoryOptimizations optimizations, Orders orders,
                                   std::optional<detail::PlayedPipeline>& played) const {
    const StagingCosts costs(as_run(staging, optimizations.sequence), staging, sized, optimizations);
    const BatchLayout layout{slices_.local(), staging.microbatches};
    StepTerms terms = untimed(staging, sized, costs, std::move(optimizations), std::move(orders));
    if (!terms.orders.empty() || !played || !played->holds_for(costs)) {
      const GivenOrders given{terms.orders, staging.microbatches};
      played.emplace(work_.loss_mode, sized.pipeline, layout, staging.schedule, given, costs);
    }
    explain(terms, staging, sized, costs, played->timeline(costs));
    return terms;
  }

  /// @param timeline  of the same staging on the same ranks; simulated again unless its compute actions last as long
  [[nodiscard]] StepTerms folded(const Staging& staging, const SizedPipeline& sized, MemoryOptimizations optimizations,
                                 Orders orders, std::optional<detail::FoldedTimeline>& timeline) const {
    const StagingCosts costs(as_run(staging, optimizations.sequence), staging, sized, optimizations);
    const Workload& run = as_run(staging, optimizations.sequence);
    StepTerms terms = untimed(staging, sized, costs, std::move(optimizations), std::move(orders));
    if (!terms.orders.empty() || !timeline || !timeline->holds_for(costs))
      timeline.emplace(run, staging, sized, detail::largest_slices(staging, slices_), busy_times(staging), terms.orders,
                       costs);
    explain(terms, staging, sized, costs, timeline->timeline(costs));
    return terms;
  }

  /// Memory and, for a synthesised schedule, orders.
  [[nodiscard]] StepTerms untimed(const Staging& staging, const SizedPipeline& sized, const StagingCosts& costs,
                                  MemoryOptimizations optimizations, Orders orders) const {
    const bool synthesised = traits_of(staging.schedule).orders_in_plan;
    StepTerms terms;
    terms.meshes = sized.pipeline.stages;
    if (synthesised)
      terms.orders = orders.empty() ? orders_of(staging, sized, costs, optimizations) : std::move(orders);
    terms.optimizations = std::move(optimizations);
    terms.stages.resize(terms.meshes.size());
    set_memory(terms, staging, sized);
    return terms;
  }

  /// Sets the memory, given everything else in the terms.
  void set_memory(StepTerms& terms, const Staging& staging, const SizedPipeline& sized) const {
    // Results that leave the call are all forward before the first backward, whatever the orders.
    const auto in_flight =
        terms.orders.empty() || !work_.loss_mode
            ? in_flight_of_positions(staging, sized, terms.optimizations)
            : in_flight_of(terms.orders, held_by_microbatch(as_run(staging, terms.optimizations.sequence), staging,
                                                            sized, slices_, terms.optimizations));
    const auto stages = memory_of(staging, sized, in_flight, terms.optimizations);
    terms.host_holds = host_holds(terms.meshes, stages);
    for (std::size_t s = 0; s < stages.size(); ++s) terms.stages[s].memory = stages[s];
  }

  /// The most micro-batches in which one replica has samples.
  [[nodiscard]] int busy_times(const Staging& staging) const {
    int times = 1;
    for (const int replicas : staging.replicas)
      times = std::max(times, slices_.at(staging.microbatches, replicas, staging.stages()).busy_times());
    return times;
  }

  /// What fits comes before what does not, then the shorter step, then the earlier one.
  void keep_better(std::optional<StepTerms>& best, StepTerms terms) const {
    if (!best || is_better(terms, *best)) best = std::move(terms);
  }
  [[nodiscard]] bool is_better(const StepTerms& a, const StepTerms& b) const {
    return std::pair(!fits(a), a.step) < std::pair(!fits(b), b.step);
  }

  /// @param memory  that the ranks should fit; if they cannot, the result has the least memory
  [[nodiscard]] MemoryOptimizations optimizations(const Staging& staging, const SizedPipeline& sized,
                                                  MemoryOptimizations out, Bytes memory) const {
    if (constraints_.recompute == Recompute::kNever) return out;
    const auto in_flight = in_flight_of_positions(staging, sized, out);
    if (constraints_.recompute == Recompute::kToFit &&
        positions_fit(staging, memory_of(staging, sized, in_flight, out), memory))
      return out;
    const Workload& run = as_run(staging, out.sequence);
    const auto segments = detail::segments_in_stages(run, staging);
    const detail::RecomputeChoice choice(run, staging, sized, slices_, segments, in_flight, fixed_of(staging, out));
    out.recomputed = choice.chosen(constraints_.recompute == Recompute::kAlways ? std::nullopt : std::optional(memory));
    return out;
  }

  /// Whether the stages of each position fit together.
  [[nodiscard]] static bool positions_fit(const Staging& staging, const std::vector<StageMemory>& stages,
                                          Bytes memory) {
    std::vector<Bytes> held(staging.replicas_of_positions().size());
    for (int s = 0; s < staging.stages(); ++s) {
      Bytes& sum = held[static_cast<std::size_t>(staging.position(s))];
      sum += stages[static_cast<std::size_t>(s)].total();
      if (sum > memory) return false;
    }
    return true;
  }

  /// Micro-batches that each stage holds; an estimate for synthesised schedules. Replicas of a stage are alike.
  [[nodiscard]] std::vector<InFlight> in_flight_of_positions(const Staging& staging, const SizedPipeline& sized,
                                                             const MemoryOptimizations& optimizations) const {
    if (has_closed_form(staging.schedule) || traits_of(staging.schedule).orders_in_plan || !work_.loss_mode)
      return in_flight_by_law(as_run(staging), staging);
    Pipeline positions;
    positions.ranks = static_cast<int>(staging.replicas_of_positions().size());
    for (int s = 0; s < staging.stages(); ++s) positions.stages.push_back({Rank(staging.position(s))});
    const auto orders = with_policy(
        staging.schedule, [&](const auto& policy) { return rank_orders_of(policy, positions, staging.microbatches); });
    return in_flight_of(
        orders, held_by_microbatch(as_run(staging, optimizations.sequence), staging, sized, slices_, optimizations));
  }

  /// `predict_memory`; what depends on neither micro-batches in flight nor recomputation is cached for a staging.
  [[nodiscard]] std::vector<StageMemory> memory_of(const Staging& staging, const SizedPipeline& sized,
                                                   const std::vector<InFlight>& in_flight,
                                                   const MemoryOptimizations& optimizations) const {
    return predict_memory(as_run(staging, optimizations.sequence), staging, sized, slices_, in_flight, optimizations,
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
    const detail::FoldedPipeline folded(as_run(staging, optimizations.sequence), staging, sized,
                                        detail::largest_slices(staging, slices_), microbatches, costs);
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
    const auto bytes =
        held_by_microbatch(as_run(staging, optimizations.sequence), staging, sized, slices_, optimizations);
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
    for (std::size_t r = 0; r < least.size(); ++r) {  // it cannot fit: the time that it would take is still of interest
      if (least[r] > policy.limits[r]) policy.limits.clear();
      if (policy.limits.empty()) break;
    }
    return policy.synthesise(pipeline, layout.microbatches).orders.orders;
  }

  void explain(StepTerms& terms, const Staging& staging, const SizedPipeline& sized, const StagingCosts& costs,
               const detail::CallTimeline& timeline) const {
    terms.step = timeline.step;
    std::vector<Seconds> updates(timeline.busy.size());  // of all stages of a rank
    for (std::size_t s = 0; s < terms.stages.size(); ++s) {
      StageTerms& stage = terms.stages[s];
      const auto slice = slices_.at(staging.microbatches, staging.replicas[s], staging.stages()).largest;
      stage.forward = costs.forward(StageId::of(s), slice);
      stage.backward = costs.backward(StageId::of(s), slice);
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
