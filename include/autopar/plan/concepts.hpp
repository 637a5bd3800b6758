#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <autopar/cost/concepts.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/graph/partition.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Mark what a policy is for, so that `Planner` takes policies in any order.
struct staging_policy_tag {};
struct coarsening_policy_tag {};
struct cost_policy_tag {};

/// A staging with its predicted terms.
struct Candidate {
  Staging staging;
  StepTerms terms;
};

/// The fastest staging of each shape that a search met, whether it fits or not. A shape is the replicas and tensor
/// shards of each stage, and which stages share ranks.
class Candidates {
 public:
  explicit Candidates(Bytes memory) : memory_(memory) {}

  [[nodiscard]] bool fits(const Candidate& candidate) const { return StepObjective::fits(candidate.terms, memory_); }

  /// Keeps the better candidate of each shape. At equal steps fewer micro-batches win, then the earlier candidate.
  /// @return whether the candidate is now the fastest that fits
  bool offer(Candidate candidate) {
    const bool fit = fits(candidate);
    const bool improves = fit && (!any_fits() || faster(candidate, best()));
    if (improves) {
      best_ = std::min(best_, candidate.terms.step);
      best_shape_ = shape_of(candidate.staging);
    }
    const Shape shape = shape_of(candidate.staging);
    if (by_shape_.size() >= kShapes && !by_shape_.contains(shape) && !improves) return false;
    auto [entry, added] = by_shape_.try_emplace(shape, candidate);
    if (!added) {
      const bool old_fit = fits(entry->second);
      if (fit != old_fit ? fit : faster(candidate, entry->second)) entry->second = std::move(candidate);
    }
    return improves;
  }

  /// Step of the fastest that fits; infinite if there is none.
  [[nodiscard]] Seconds best_step() const { return best_; }
  [[nodiscard]] bool empty() const { return by_shape_.empty(); }
  [[nodiscard]] bool any_fits() const { return !std::get<0>(best_shape_).empty(); }
  /// @pre any_fits()
  [[nodiscard]] const Candidate& best() const { return by_shape_.at(best_shape_); }

  /// All shapes: those that fit first, then by step.
  [[nodiscard]] std::vector<Candidate> ranked() const {
    std::vector<Candidate> all;
    for (const auto& [shape, candidate] : by_shape_) all.push_back(candidate);
    rank(all, memory_);
    return all;
  }

  /// What fits first, then by step; equal candidates keep their order.
  static void rank(std::vector<Candidate>& candidates, Bytes memory) {
    std::vector<std::tuple<bool, Seconds, std::size_t>> order;
    for (const Candidate& candidate : candidates)
      order.emplace_back(!StepObjective::fits(candidate.terms, memory), candidate.terms.step, order.size());
    std::sort(order.begin(), order.end());
    std::vector<Candidate> ranked;
    for (const auto& [large, step, i] : order) ranked.push_back(std::move(candidates[i]));
    candidates = std::move(ranked);
  }

 private:
  // Replicas, positions and tensor shards of stages.
  using Shape = std::tuple<std::vector<int>, std::vector<int>, std::vector<int>>;
  static Shape shape_of(const Staging& staging) { return {staging.replicas, staging.position_of, staging.tensor}; }

  /// Sums in another order differ in the last digits, which must not decide.
  static bool faster(const Candidate& a, const Candidate& b) {
    constexpr double kSame = 1e-9;
    if (a.terms.step < b.terms.step * (1 - kSame)) return true;
    return a.terms.step <= b.terms.step * (1 + kSame) && a.staging.microbatches < b.staging.microbatches;
  }

  static constexpr std::size_t kShapes = 512;  // runners-up are for reading; memory stays bounded
  Bytes memory_;
  Seconds best_{std::numeric_limits<double>::infinity()};
  Shape best_shape_;
  std::map<Shape, Candidate> by_shape_;
};

struct LeastMemory;

/// What a search found.
struct SearchResult {
  Candidates candidates;
  bool proven = false;                         ///< no staging of the workload is faster
  bool plain_proven = false;                   ///< no staging with one stage a rank and whole backwards is faster
  Seconds lower_bound{};                       ///< no staging of the workload is faster than this
  std::int64_t states = 0;                     ///< number of states that were expanded
  bool mixes_degrees = false;                  ///< stages may have different tensor degrees
  std::shared_ptr<const LeastMemory> least{};  ///< `least_memory`, if the search asked for it
};

/// What a planner minimises. The default is `StepObjective`; `SlowestStage` is another.
///
/// `Solution` is a point of the search, `Found` what a staging policy returns. Called with a solution, an objective
/// gives its terms. `seconds` takes from them what is minimised; `fits` says whether all limits hold. Laws: pure;
/// seconds are finite and not negative; solutions that do not fit have terms, too.
template <class O>
concept Objective = requires(const O& objective, const typename O::Solution& solution) {
  requires std::same_as<typename O::policy_category, objective_policy_tag>;
  requires std::is_object_v<typename O::Found>;
  { objective.seconds(objective(solution)) } -> std::same_as<Seconds>;
  { objective.fits(objective(solution)) } -> std::same_as<bool>;
};
static_assert(Objective<StepObjective>);

/// Finds stagings of a workload under an objective and its constraints.
///
/// Laws: pure and deterministic. Stages are convex and not empty, and they partition the nodes. Constraints on stages,
/// replicas, micro-batches, schedules and whole-batch nodes are met. An exact policy returns the fastest staging that
/// fits. Budgets count expanded states. `testing/staging_laws.hpp` checks the laws.
template <class P, class O = StepObjective>
concept StagingPolicy = Objective<O> && requires(const P& policy, const O& objective) {
  requires std::same_as<typename P::policy_category, staging_policy_tag>;
  { policy.search(objective) } -> std::same_as<typename O::Found>;
};

/// Groups nodes into blocks before the search.
///
/// Laws: pure and deterministic. The blocks partition the nodes, and their quotient is acyclic. There are at least
/// `least_blocks` blocks (the stages that the user asks for) if the workload has so many nodes.
/// `testing/coarsening_laws.hpp` checks the laws.
template <class P>
concept CoarseningPolicy = requires(const P& policy, const Workload& work, std::int64_t samples, int least_blocks) {
  requires std::same_as<typename P::policy_category, coarsening_policy_tag>;
  { policy.coarsen(work, samples, least_blocks) } -> std::same_as<Partition>;
};

/// Turns the costs of a captured model, measured where possible, into the costs that are planned with. Laws: pure and
/// deterministic. The result keeps the laws of `CostModel` and may refer to both arguments.
template <class P>
concept CostPolicy = requires(const P& policy, const ModelProfile& profile, const ProfiledCost& measured) {
  requires std::same_as<typename P::policy_category, cost_policy_tag>;
  { policy.costs(profile, measured) } -> CostModel<ModelGraph>;
};

/// The costs as they are, whatever their model.
struct CostsAsGiven {
  using policy_category = cost_policy_tag;
  template <class M>
  [[nodiscard]] const M& costs(const ModelProfile&, const M& given) const {
    return given;
  }
};
static_assert(CostPolicy<CostsAsGiven>);

/// Whether a schedule runs on stages at the staging's positions.
[[nodiscard]] inline bool suits(ScheduleKind schedule, const Staging& staging) {
  if (staging.position_of.empty()) return !wants_chunks(schedule);
  const StageLayout wanted = traits_of(schedule).layout;
  if (wanted == StageLayout::kAnywhere) return true;
  ChunkLayout stages{std::vector<std::vector<Rank>>(staging.replicas_of_positions().size()), {}};
  for (int s = 0; s < staging.stages(); ++s) stages.at.push_back(static_cast<std::size_t>(staging.position(s)));
  return wants_chunks(schedule) && stages.chunks() > 1 && lies_in(wanted, stages);
}

/// Whether a staging meets what the user fixed and what whole-batch nodes need. Does not check memory.
[[nodiscard]] inline bool meets(const Constraints& constraints, const Workload& work, const Staging& staging) {
  if (staging.ranks() > constraints.world) return false;
  const auto positions = staging.position_of.empty() ? staging.replicas : staging.replicas_of_positions();
  const int count = static_cast<int>(positions.size());
  if (constraints.stages > 0 && count != constraints.stages) return false;
  if (constraints.replicas_are_fixed() && positions != constraints.fixed_replicas(count)) return false;
  if (!suits(staging.schedule, staging)) return false;
  const auto& allowed = constraints.microbatches;
  if (std::find(allowed.begin(), allowed.end(), staging.microbatches) == allowed.end()) return false;
  if (!constraints.allows(staging.schedule)) return false;
  if (ties_tensor_shards(work, staging, constraints.tensor)) return false;
  for (const NodeId node : work.graph.nodes()) {
    const auto stage = static_cast<std::size_t>(staging.stage_of[node.index()]);
    if (work.graph[node].whole_batch && (staging.replicas[stage] != 1 || staging.microbatches != 1)) return false;
  }
  return true;
}

}  // namespace autopar
