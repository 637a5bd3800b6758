#pragma once

#include <algorithm>
#include <concepts>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/cost/links.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/feasibility/attempt.hpp>
#include <autopar/plan/feasibility/refusal.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/multilevel/coarsened.hpp>
#include <autopar/plan/multilevel/heavy_edge.hpp>
#include <autopar/plan/outcome.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/search/exact_staging.hpp>
#include <autopar/plan/search/variants.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

namespace detail {

template <class Tag, class Policy>
concept InCategory = std::same_as<typename Policy::policy_category, Tag>;

/// The policies of a category, as a tuple.
template <class Tag, class... Policies>
using OfCategory = decltype(std::tuple_cat(
    std::declval<std::conditional_t<InCategory<Tag, Policies>, std::tuple<Policies>, std::tuple<>>>()...));
/// The first of them, or the default.
template <class Tag, class Default, class... Policies>
using Pick = std::tuple_element_t<0, decltype(std::tuple_cat(std::declval<OfCategory<Tag, Policies...>>(),
                                                             std::declval<std::tuple<Default>>()))>;
template <class Tag, class... Policies>
inline constexpr bool kAtMostOne = std::tuple_size_v<OfCategory<Tag, Policies...>> <= 1;

template <class Policy>
concept KnownPolicy = InCategory<staging_policy_tag, Policy> || InCategory<coarsening_policy_tag, Policy> ||
    InCategory<objective_policy_tag, Policy> || InCategory<cost_policy_tag, Policy>;

/// The search that an objective names, or the search for the simulated step.
template <class O>
struct DefaultStaging {
  using type = ExactStaging;
};
template <class O>
requires requires { typename O::DefaultStaging; }
struct DefaultStaging<O> {
  using type = typename O::DefaultStaging;
};

}  // namespace detail

/// Turns a graph, its costs, a cluster and options into a plan. Pure: no device, clock, file, log or global. The same
/// input gives the same plan, byte for byte.
///
/// Policies come in any order, and defaults replace missing ones: `Planner<>`, `Planner<UniformStaging>`,
/// `Planner<MyCoarsening, MyStaging>`. Their knobs are members: `Planner{MyStaging{.width = 8}}`. What a
/// search may spend is `PlanRequest::budget`. An objective is a policy, too. `Planner<SlowestStage>` uses the staging
/// policy that the objective names, `Planner<MyObjective, MyStaging>` the user's. A `CostPolicy` decides what operators
/// of a captured model cost.
template <class... Policies>
class Planner {
 public:
  static_assert((detail::KnownPolicy<Policies> && ...),
                "Planner: one of the policies is of no kind that a planner takes: its `policy_category` must be "
                "staging_policy_tag, coarsening_policy_tag, objective_policy_tag or cost_policy_tag");
  using Minimised = detail::Pick<objective_policy_tag, StepObjective, Policies...>;
  using StagingSearch = detail::Pick<staging_policy_tag, typename detail::DefaultStaging<Minimised>::type, Policies...>;
  using Coarsening = detail::Pick<coarsening_policy_tag, HeavyEdge, Policies...>;
  using Costing = detail::Pick<cost_policy_tag, CostsAsGiven, Policies...>;
  static_assert(detail::kAtMostOne<staging_policy_tag, Policies...>, "Planner: more than one staging policy");
  static_assert(detail::kAtMostOne<coarsening_policy_tag, Policies...>, "Planner: more than one coarsening policy");
  static_assert(detail::kAtMostOne<objective_policy_tag, Policies...>, "Planner: more than one objective");
  static_assert(detail::kAtMostOne<cost_policy_tag, Policies...>, "Planner: more than one cost policy");
  static_assert(
      Objective<Minimised>,
      "Planner: the objective does not model Objective: it needs the types `Solution` and `Found`, `operator()(const "
      "Solution&) const`, and of what that returns `Seconds seconds(terms) const` and `bool fits(terms) const`");
  static_assert(StagingPolicy<StagingSearch, Minimised>,
                "Planner: the staging policy does not model StagingPolicy: it needs `SearchResult search(const "
                "StepObjective&) const`, or for another objective O `O::Found search(const O&) const`");
  static_assert(CoarseningPolicy<Coarsening>,
                "Planner: the coarsening policy does not model CoarseningPolicy: it needs `Partition coarsen(const "
                "Workload&, std::int64_t samples, int least_blocks) const`");
  static_assert(CostPolicy<Costing>,
                "Planner: the cost policy does not model CostPolicy: it needs `costs(const ModelProfile&, const "
                "ProfiledCost&) const`, which returns a CostModel of a ModelGraph");

  /// Whether plans minimise the simulated step, and so are for the runtime.
  static constexpr bool kSimulates = std::same_as<Minimised, StepObjective>;
  /// Whether there is no cost policy. A cost policy is for captured models only; other graphs come with their own
  /// costs.
  static constexpr bool kTakesCosts = std::same_as<Costing, CostsAsGiven>;

  StagingSearch staging{};
  Coarsening coarsening{};
  Costing costing{};
  PlanObserver observer{};

  Planner() = default;
  /// With these policies as they are.
  explicit Planner(Policies... policies) requires(sizeof...(Policies) > 0 &&
                                                  !(detail::InCategory<objective_policy_tag, Policies> || ...)) {
    (take(std::move(policies)), ...);
  }

  /// A plan for a captured model, with costs from the cluster's peak rates.
  /// @throws InvalidArgument if options contradict one another, the world, the model or the runtime
  /// @throws CaptureError if a forced plan cannot run an operator exactly
  /// @throws InfeasiblePlan if no plan fits the memory: the stage, the bytes, and the changes that fit
  [[nodiscard]] Plan plan(const ModelProfile& profile, const Cluster& cluster,
                          const PlanRequest& request) const requires kSimulates {
    return plan(profile, ProfiledCost(at_precision(cluster, request.options.precision), {}), cluster, request);
  }

  /// Likewise with other costs. If there is a cost policy, they must be a `ProfiledCost`, which the policy turns into
  /// the costs that count.
  template <class M>
  requires kSimulates [[nodiscard]] Plan plan(const ModelProfile& profile, const M& costs, const Cluster& cluster,
                                              const PlanRequest& request) const {
    return plan_of(try_plan(profile, costs, cluster, request));
  }

  /// Likewise, with an Infeasible answer as a value. @throws InvalidArgument, CaptureError as `plan`
  template <class M>
  requires kSimulates [[nodiscard]] PlanOutcome try_plan(const ModelProfile& profile, const M& costs,
                                                         const Cluster& cluster, const PlanRequest& request) const {
    return detail::VariantSearch::run(
        request, [&](bool remedies) { return search_program(profile, costs, cluster, request, remedies); },
        [&](const ProgramVariant& variant, bool remedies) {
          return search_program(variant.profile, variant.costs, cluster, request, remedies);
        });
  }

  /// Whether the costs of operators can change the plan. They cannot if nothing fits, or if one rank runs the model
  /// with the fewest micro-batches and nothing recomputed or offloaded.
  /// @cost no search for fast plans
  [[nodiscard]] bool depends_on_costs(const ModelProfile& profile, const Cluster& cluster,
                                      const PlanRequest& request) const requires kSimulates {
    const ProfiledCost peak_rates(at_precision(cluster, request.options.precision), {});
    const Workload work = make_workload(profile, peak_rates);
    const Resolved resolved = try_resolve(request, work, cluster);
    if (std::holds_alternative<Contradiction>(resolved)) return false;
    const auto& constraints = std::get<Constraints>(resolved);
    if (constraints.ranks() > 1 || constraints.stages > 1) return true;
    const Staging as_it_is{std::vector<int>(work.graph.node_count(), 0),
                           {1},
                           constraints.microbatches.front(),
                           constraints.schedules.front()};
    if (constraints.recompute != Recompute::kAlways && constraints.offloads.front() == Offload::kNone &&
        allows_chunks(traits_of(as_it_is.schedule).layout, 1)) {
      const StepTerms terms = StepObjective(work, cluster, constraints)(as_it_is);
      const bool changed = terms.optimizations.recomputes() || terms.optimizations.offload != Offload::kNone;
      if (!changed && StepObjective::fits(terms, constraints.memory)) return false;
    }
    return Attempt(staging, coarsening, work, cluster, constraints).trial().fit.has_value();
  }

  /// A plan for any graph with its own cost model; `StagePlan::ops` stays empty.
  template <BidirectionalGraph G, class M>
  requires(kSimulates&& kTakesCosts) [[nodiscard]] Plan
      plan(const G& graph, const M& costs, const Cluster& cluster, const PlanRequest& request) const {
    require_cost_model<M, G>();
    const Workload work = make_workload(graph, costs);
    detail::ProgramAnswer answer = search_workload(work, cluster, request);
    if (const auto* contradiction = std::get_if<Contradiction>(&answer)) contradiction->raise();
    if (auto* why = std::get_if<Infeasible>(&answer)) throw InfeasiblePlan(std::move(*why));
    return std::get<Plan>(std::move(answer));
  }

  /// What the staging policy finds under another objective than the simulated step. Takes any graph, with costs and
  /// limits from which the objective can be made. There is no coarsening: only the objective knows which nodes may be
  /// grouped.
  /// @throws what the objective's constructor throws; for `SlowestStage` see `make_tables`
  template <BidirectionalGraph G, class M, class Limits>
  requires(!kSimulates && std::constructible_from<Minimised, const G&, const M&, const Limits&>) [[nodiscard]]
  typename Minimised::Found plan(const G& graph, const M& costs, const Limits& limits) const {
    const Minimised objective(graph, costs, limits);
    observe("searching " + std::to_string(graph.node_count()) + " nodes");
    return staging.search(objective);
  }

 private:
  template <class Policy>
  void take(Policy policy) {
    if constexpr (detail::InCategory<staging_policy_tag, Policy>)
      staging = std::move(policy);
    else if constexpr (detail::InCategory<coarsening_policy_tag, Policy>)
      coarsening = std::move(policy);
    else
      costing = std::move(policy);
  }

  template <class M, class G>
  static constexpr void require_cost_model() {
    static_assert(
        CostModel<M, G>,
        "Planner: the costs do not model CostModel of the graph: they need `NodeCost node(const G&, NodeId, "
        "double samples) const`, `ValueProfile value(const G&, EdgeId) const`, `Seconds transfer(Bytes, Rank, "
        "Rank) const`, `Seconds all_reduce(Bytes, std::span<const Rank>) const` and `Seconds update(Bytes, "
        "double factor) const`");
  }

  /// One program of a request, without replicas if they would starve an operator.
  template <class M>
  [[nodiscard]] detail::ProgramAnswer search_program(const ModelProfile& profile, const M& given,
                                                     const Cluster& cluster, const PlanRequest& request,
                                                     bool remedies) const {
    require_cost_model<M, ModelGraph>();
    PlanRequest own = request;
    own.variants.clear();
    own.remedies = remedies;
    const auto& costs = costing.costs(profile, given);  // a workload refers to its costs
    const Workload work = make_workload(profile, costs);
    detail::ProgramAnswer answer = search_workload(work, cluster, own);
    state_operators(profile, answer);
    const auto* plan = std::get_if<Plan>(&answer);
    if (plan == nullptr || !request.starves || !request.starves(*plan)) return answer;
    own.options.replicas = {1};
    own.remedies = false;
    detail::ProgramAnswer without_replicas = search_workload(work, cluster, own);
    state_operators(profile, without_replicas);
    return std::holds_alternative<Plan>(without_replicas) ? without_replicas : answer;
  }

  static void state_operators(const ModelProfile& profile, detail::ProgramAnswer& answer) {
    auto* plan = std::get_if<Plan>(&answer);
    if (plan == nullptr) return;
    for (StagePlan& stage : plan->stages) {
      for (const NodeId atom : stage.atoms) {
        const auto& ops = profile.graph[atom].ops;
        stage.ops.insert(stage.ops.end(), ops.begin(), ops.end());
      }
      std::sort(stage.ops.begin(), stage.ops.end());
    }
  }

  /// Searches all tensor degrees, for each all stagings, and describes the fastest plan or why there is none.
  [[nodiscard]] detail::ProgramAnswer search_workload(const Workload& work, const Cluster& cluster,
                                                      const PlanRequest& request) const {
    Resolved resolved = try_resolve(request, work, cluster);
    if (auto* contradiction = std::get_if<Contradiction>(&resolved)) return std::move(*contradiction);
    observe("putting " + std::to_string(work.graph.node_count()) + " nodes together");
    const Attempt attempt(staging, coarsening, work, cluster, std::get<Constraints>(std::move(resolved)));
    const Constraints& constraints = attempt.constraints();
    const detail::Coarsened& coarse = attempt.coarse();
    observe("searching cuts of " + std::to_string(coarse.blocks.block_count()) + " blocks of " +
            std::to_string(work.graph.node_count()) + " nodes");
    SearchResult found = attempt.search();
    observe("searched " + std::to_string(found.states) + " states" + (found.proven ? ", all there are" : ""));
    if (!found.candidates.any_fits()) {
      observe("none fits the memory: looking for the smallest changes that do");
      const bool has_smaller_buckets = constraints.buckets.size > BucketPolicy::kLeast && !request.buckets;
      const auto least =
          attempt.offer_least(found, has_smaller_buckets ? std::optional(coarse.constraints.memory) : std::nullopt);
      if (!found.candidates.any_fits() && has_smaller_buckets) {
        observe("the smallest buckets may");
        PlanRequest smaller = request;
        smaller.buckets = BucketPolicy{};
        return search_workload(work, cluster, smaller);
      }
      if (!found.candidates.any_fits()) return reason(work, attempt, found, least, cluster, request);
    }
    Plan result = detail::PlanMaker(attempt.work(), cluster, request, constraints).make(coarse, found);
    observe("planned " + describe(result));
    return result;
  }

  using Attempt = detail::Attempt<StagingSearch, Coarsening>;

  /// Why there is no plan, and which changes make one feasible.
  [[nodiscard]] Infeasible reason(const Workload& work, const Attempt& attempt, const SearchResult& found,
                                  const std::optional<LeastMemory>& least, const Cluster& cluster,
                                  const PlanRequest& request) const {
    const auto trials = [&](const PlanRequest& changed, const Cluster& other) -> detail::Trial {
      Workload on_other = work;
      if (other.devices > cluster.devices) {  // costs do not know the links of additional ranks
        on_other.transfer = [&](Bytes bytes, Rank from, Rank to) { return point_to_point(other, bytes, from, to); };
        on_other.all_reduce = [&](Bytes bytes, std::span<const Rank> ranks) {
          return all_reduce_time(other, bytes, ranks);
        };
        on_other.contention = [&](std::span<const Rank> ranks) {
          return work.least_contention(static_cast<int>(ranks.size()));
        };
      }
      Resolved resolved = try_resolve(changed, on_other, other);
      if (std::holds_alternative<Contradiction>(resolved)) return {};
      return Attempt(staging, coarsening, std::move(on_other), other, std::get<Constraints>(std::move(resolved)))
          .trial();
    };
    return detail::Refusal(attempt.work(), cluster, request, attempt.constraints(), trials)
        .reason(attempt.coarse(), found.candidates.ranked(), least);
  }

  void observe(const std::string& phase) const {
    if (observer) observer(phase);
  }
};

}  // namespace autopar
