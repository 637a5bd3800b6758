#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/rest_bottleneck.hpp>
#include <autopar/plan/step/lower_bound.hpp>
#include <autopar/plan/step/stage_table.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Depth-first branch and bound over the stages of one pipeline, from the last stage to the first, for one number of
/// micro-batches and one schedule.
class BranchAndBound {
 public:
  /// @param rest  for the same micro-batches and schedule; nullptr if it would take too long
  /// @param degrees  that each stage may have; empty: the one degree of the constraints
  BranchAndBound(const StepObjective& objective, StageTable& table, const RestBottleneck* rest, int microbatches,
                 ScheduleKind schedule, SearchResult& result, std::int64_t budget,
                 std::vector<StageDegree> degrees = {})
      : objective_(objective),
        constraints_(objective.constraints()),
        table_(table),
        degrees_(degrees.empty() ? std::vector<StageDegree>{{1, &table}} : std::move(degrees)),
        microbatches_(microbatches),
        schedule_(schedule),
        bound_(table, objective, microbatches, schedule),
        rest_(rest),
        result_(result),
        last_state_(result.states + budget) {}

  [[nodiscard]] double root_bound() {
    const double rest = rest_ ? (*rest_)(table_.tails().empty_set(), constraints_.world, 0) : 0;
    return std::max(bound_({}, constraints_.world), rest);
  }

  /// @return whether the search was completed within the budget
  bool run() {
    extend(table_.tails().empty_set(), constraints_.world);
    return !exhausted();
  }

 private:
  [[nodiscard]] bool exhausted() const { return result_.states > last_state_; }
  /// Sums in another order differ in the last digits; a bound must not prune because of that.
  [[nodiscard]] bool hopeless(double bound) const {
    return bound * (1 - 1e-9) >= std::min(result_.candidates.best_step(), constraints_.to_beat).value();
  }

  /// Counts a choice that is ruled out at once, which takes a small part of a state.
  void look() {
    if (++looks_ % kLooksAState == 0) ++result_.states;
  }

  /// @param left  ranks without a stage
  void extend(DownsetId from, int left) {
    if (constraints_.stages > 0 && static_cast<int>(chosen_.size()) == constraints_.stages) return;
    table_.for_each_stage(from, [&](const StageNodes& stage) { return !exhausted() && try_stage(stage, left); });
  }

  /// Tries all degrees and replicas for a stage. @return whether larger stages are worth trying
  bool try_stage(const StageNodes& stage, int left) {
    const auto& tails = table_.tails();
    const bool first = stage.to == tails.all_nodes();
    const int before =
        constraints_.stages > 0 ? constraints_.stages - static_cast<int>(chosen_.size()) - 1 : (first ? 0 : 1);
    if (constraints_.stages > 0 && first != (before == 0)) return !first;
    if (static_cast<int>(tails.node_count() - tails.cardinality(stage.to)) < before) return false;
    bool larger = false;
    for (const StageDegree& degree : degrees_) larger = try_replicas(degree, stage, left, before) || larger;
    return larger;
  }

  /// @param before  the least number of stages before this one
  bool try_replicas(const StageDegree& degree, const StageNodes& stage, int left, int before) {
    const int later = static_cast<int>(chosen_.size());
    const int reserved = before * std::max(1, constraints_.replicas_of_each);
    const auto [low, high] = table_.replicas(stage, later, (left - reserved) / degree.tensor);
    // A larger stage may be the first one, which leaves no rank to others: under ZeRO more replicas hold less each.
    const int widest = table_.replicas(stage, later, left / degree.tensor).second;
    look();
    if (widest < 1 || !degree.table->holds(stage, widest)) return false;
    const bool first = stage.to == table_.tails().all_nodes(), only = table_.is_only(stage);
    const int in_flight = peak_in_flight(schedule_, objective_.work().loss_mode, 0, later + 1, microbatches_);
    for (int replicas = high; replicas >= low; --replicas) {
      look();
      const int rest = left - replicas * degree.tensor;
      if (rest_ && hopeless((*rest_)(stage.to, rest, later + 1))) continue;
      ++result_.states;
      const double recompute = degree.table->recomputing_to_fit(stage, in_flight, microbatches_, replicas, only);
      if (recompute == std::numeric_limits<double>::infinity()) continue;
      chosen_.push_back(bound_.choose(degree, stage, replicas, only, recompute, chosen_));
      if (!constraints_.budget.bounds_partial_stagings || !hopeless(bound_(chosen_, rest))) {
        if (first)
          evaluate();
        else
          extend(chosen_.back().to, rest);
      }
      chosen_.pop_back();
    }
    return true;
  }

  void evaluate() {
    Staging staging = staging_of(chosen_, table_.tails().node_count(), microbatches_, schedule_);
    const bool mixed = std::ranges::any_of(chosen_, [](const ChosenStage& stage) { return stage.tensor > 1; });
    for (auto stage = chosen_.rbegin(); mixed && stage != chosen_.rend(); ++stage)
      staging.tensor.push_back(stage->tensor);
    const bool is_sharded = constraints_.tensor > 1 || mixed;
    if (is_sharded && !meets(constraints_, objective_.work(), staging)) return;  // parameters may be tied
    result_.states += objective_.variants(staging) * (kStatesAPrediction + objective_.actions(staging) * 2 / 3);
    StepTerms terms = objective_(staging);
    result_.candidates.offer({std::move(staging), std::move(terms)});
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  StageTable& table_;
  std::vector<StageDegree> degrees_;
  int microbatches_;
  ScheduleKind schedule_;
  LowerBound bound_;
  const RestBottleneck* rest_;
  SearchResult& result_;
  std::int64_t last_state_, looks_ = 0;
  std::vector<ChosenStage> chosen_;  // last stage of the pipeline first
};

}  // namespace autopar::detail
