#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/chunked_staging.hpp>
#include <autopar/plan/search/least_memory.hpp>
#include <autopar/plan/search/lower_bound.hpp>
#include <autopar/plan/search/refine.hpp>
#include <autopar/plan/search/rest_bottleneck.hpp>
#include <autopar/plan/search/uniform_staging.hpp>

namespace autopar {

namespace detail {

/// Depth-first branch and bound over the stages of one pipeline, from the last stage to the first, for one number of
/// micro-batches and one schedule.
class BranchAndBound {
 public:
  /// @param rest  for the same micro-batches and schedule; nullptr if it would take too long
  /// @param degrees  that each stage may have; empty: the one degree of the constraints
  BranchAndBound(const StepObjective& objective, CutTables& tables, const RestBottleneck* rest, int microbatches,
                 ScheduleKind schedule, SearchResult& result, std::int64_t budget,
                 std::vector<StageDegree> degrees = {})
      : objective_(objective),
        constraints_(objective.constraints()),
        tables_(tables),
        degrees_(degrees.empty() ? std::vector<StageDegree>{{1, &tables}} : std::move(degrees)),
        microbatches_(microbatches),
        schedule_(schedule),
        bound_(tables, objective, microbatches, schedule),
        rest_(rest),
        result_(result),
        last_state_(result.states + budget) {}

  [[nodiscard]] double root_bound() {
    return std::max(bound_({}, constraints_.world), rest_bound(tables_.tails().empty_set(), constraints_.world));
  }

  /// @return whether the search was completed within the budget
  bool run() {
    extend(tables_.tails().empty_set(), 0);
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

  void extend(DownsetId from, int used) {
    if (constraints_.stages > 0 && static_cast<int>(chosen_.size()) == constraints_.stages) return;
    NodeMask nodes = 0;
    tables_.tails().for_each_superset(
        from,
        [&](NodeId node, DownsetId to) {
          nodes |= bit(node);
          return !exhausted() && try_stage(from, to, nodes, used);
        },
        [&](NodeId node) { nodes &= ~bit(node); });
  }

  /// Tries all degrees and replicas for the stage between two tails. @return whether larger stages are worth trying
  bool try_stage(DownsetId from, DownsetId to, NodeMask nodes, int used) {
    const bool first = to == tables_.tails().all_nodes();
    const int later = static_cast<int>(chosen_.size());
    const int stages_before = constraints_.stages > 0 ? constraints_.stages - later - 1 : (first ? 0 : 1);
    const auto nodes_before = tables_.tails().node_count() - tables_.tails().cardinality(to);
    if (constraints_.stages > 0 && first != (stages_before == 0)) return !first;
    if (static_cast<int>(nodes_before) < stages_before) return false;
    bool larger = false;
    for (const StageDegree& degree : degrees_)
      larger = try_stage(degree, from, to, nodes, used, stages_before, first, later) || larger;
    return larger;
  }

  bool try_stage(const StageDegree& degree, DownsetId from, DownsetId to, NodeMask nodes, int used, int stages_before,
                 bool first, int later) {
    // A larger stage may be the first one, which leaves no rank to others: under ZeRO more replicas hold less each.
    int low = 1, high = (constraints_.world - used - stages_before) / degree.tensor;
    int widest = (constraints_.world - used) / degree.tensor;
    if (constraints_.replicas_of_each > 0) {
      low = high = widest = constraints_.replicas_of_each;
      if (used + high * (degree.tensor + stages_before) > constraints_.world) return true;
    } else if (!constraints_.replicas.empty()) {
      low = high = widest = constraints_.replicas[static_cast<std::size_t>(stages_before)];
    } else if ((nodes & tables_.whole_batch()) != 0) {
      high = std::min(high, 1);
      widest = 1;
    }
    if ((nodes & tables_.whole_batch()) != 0 && low > 1) return false;
    look();
    if (widest < 1) return false;
    if (!degree.tables->holds(from, to, nodes, widest)) return false;
    const bool only = first && later == 0;
    const int in_flight = peak_in_flight(schedule_, objective_.work().loss_mode, 0, later + 1, microbatches_);
    for (int replicas = high; replicas >= low; --replicas) {
      look();
      const int left = constraints_.world - used - replicas * degree.tensor;
      if (rest_ && hopeless((*rest_)(to, left, later + 1))) continue;
      ++result_.states;
      const double recompute =
          degree.tables->recomputing_to_fit(from, to, nodes, in_flight, microbatches_, replicas, only);
      if (recompute == std::numeric_limits<double>::infinity()) continue;
      chosen_.push_back(bound_.choose(degree, from, to, nodes, replicas, only, recompute, chosen_));
      if (!constraints_.budget.bounds_partial_stagings || !hopeless(bound_(chosen_, left))) {
        if (first)
          evaluate();
        else
          extend(to, constraints_.world - left);
      }
      chosen_.pop_back();
    }
    return true;
  }

  [[nodiscard]] double rest_bound(DownsetId tail, int ranks) const {
    return rest_ ? (*rest_)(tail, ranks, static_cast<int>(chosen_.size())) : 0;
  }

  void evaluate() {
    Staging staging;
    staging.microbatches = microbatches_;
    staging.schedule = schedule_;
    staging.stage_of.assign(tables_.tails().node_count(), 0);
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const ChosenStage& stage = chosen_[chosen_.size() - 1 - i];
      staging.replicas.push_back(stage.replicas);
      if (degrees_.size() > 1) staging.tensor.push_back(stage.tensor);
      for (NodeMask rest = stage.nodes; rest != 0; rest &= rest - 1) {
        staging.stage_of[static_cast<std::size_t>(std::countr_zero(rest))] = static_cast<int>(i);
      }
    }
    if (std::ranges::all_of(staging.tensor, [](int shards) { return shards == 1; })) staging.tensor.clear();
    const bool is_sharded = constraints_.tensor > 1 || !staging.tensor.empty();
    if (is_sharded && !meets(constraints_, objective_.work(), staging)) return;  // parameters may be tied
    result_.states += objective_.variants(staging) * (kStatesAPrediction + objective_.actions(staging) * 2 / 3);
    StepTerms terms = objective_(staging);
    result_.candidates.offer({std::move(staging), std::move(terms)});
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  CutTables& tables_;
  std::vector<StageDegree> degrees_;
  int microbatches_;
  ScheduleKind schedule_;
  LowerBound bound_;
  const RestBottleneck* rest_;
  SearchResult& result_;
  std::int64_t last_state_, looks_ = 0;
  std::vector<ChosenStage> chosen_;  // last stage of the pipeline first
};

}  // namespace detail

/// The fastest staging: stages, replicas, micro-batches and schedules over convex cuts, by branch and bound on the
/// simulated step. It starts from even stagings and local search. The result is proven to be the fastest unless the
/// budget ends first; then `lower_bound` says how much faster a staging could be.
/// @cost at most `SearchBudget::states` states of some tenths of a microsecond each
struct ExactStaging {
  using policy_category = staging_policy_tag;

  /// Workloads of more than 64 nodes are not searched, only starts are tried: use a coarsening policy. Schedules that
  /// are not plain are searched by ChunkedStaging afterwards; then nothing is proven.
  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    return detail::search_all_schedules(objective, [&](const StepObjective& plain) { return search_plain(plain); });
  }

  /// Likewise, with a separate tensor degree for each stage, after each degree was searched for all stages.
  /// @param result  of those searches; is proven if this search is completed, too
  void search_mixed(const StepObjective& objective, SearchResult& result) const {
    Constraints plain = objective.constraints();
    std::erase_if(plain.schedules, [](ScheduleKind kind) { return !ChunkedStaging::is_plain(kind); });
    const bool all_plain = plain.schedules.size() == objective.constraints().schedules.size();
    result.proven = search_mixed_plain(objective.under(plain), result) && all_plain;
    result.lower_bound = result.proven ? result.candidates.best_step() : Seconds{};
  }

  /// Something that fits, if `search` finds something. For requests where it is proven that no staging with one stage a
  /// rank fits.
  [[nodiscard]] SearchResult search_beyond_plain(const StepObjective& objective) const {
    const auto nothing = [](const StepObjective& plain) {
      return SearchResult{Candidates(plain.constraints().memory)};
    };
    return detail::search_all_schedules(objective, nothing, {.only_fits = true});
  }

 private:
  /// One of the tensor degrees that stages may have.
  struct Degree {
    Degree(const StepObjective& objective, int degree)
        : constraints(objective.constraints().at_degree(degree)), under(objective.under(constraints)) {
      tables = detail::CutTables::make(under, constraints.budget.downsets);
    }
    Degree(const Degree&) = delete;  // its members refer to one another
    Degree& operator=(const Degree&) = delete;

    Constraints constraints;
    StepObjective under;
    std::optional<detail::CutTables> tables;
  };

  /// @return whether the search was completed
  [[nodiscard]] bool search_mixed_plain(const StepObjective& objective, SearchResult& result) const {
    const Constraints& constraints = objective.constraints();
    if (constraints.schedules.empty() || objective.work().graph.node_count() > detail::kMaskNodes) return false;
    std::deque<Degree> degrees;
    std::vector<const StepObjective*> objectives;
    std::vector<detail::StageDegree> choices;
    for (const int degree : constraints.tensor_degrees) {
      degrees.emplace_back(objective, degree);
      if (!degrees.back().tables) return false;
      objectives.push_back(&degrees.back().under);
      choices.push_back({degree, &*degrees.back().tables});
    }
    auto tables = detail::CutTables::make(objective, constraints.budget.downsets, objectives);
    const std::int64_t last = result.states + most_states(objective) / constraints.budget.part_of_degrees;
    bool ended = true;
    for (const int microbatches : constraints.microbatches) {
      for (std::size_t i = 0; i < constraints.schedules.size(); ++i) {
        if (i > 0 && runs_alike(objective, microbatches)) continue;
        const std::int64_t budget = std::max<std::int64_t>(0, last - result.states);
        ended = detail::BranchAndBound(objective, *tables, nullptr, microbatches, constraints.schedules[i], result,
                                       budget, choices)
                    .run() &&
                ended;
      }
    }
    return ended;
  }

  [[nodiscard]] SearchResult search_plain(const StepObjective& objective) const {
    SearchResult result{Candidates(objective.constraints().memory)};
    std::optional<detail::CutTables> tables;
    if (objective.work().graph.node_count() <= detail::kMaskNodes)
      tables = detail::CutTables::make(objective, objective.constraints().budget.downsets);
    std::vector<Configuration> configurations;
    if (tables) configurations = all_configurations(objective, *tables, result);
    seed(objective, configurations, result);
    if (!tables) return result;
    if (!result.candidates.any_fits()) {
      const auto least = least_memory(objective);
      if (least) result.least = std::make_shared<LeastMemory>(*least);
      const bool fits = least && least->fits(objective.constraints());
      if (fits && meets(objective.constraints(), objective.work(), least->staging)) {
        offer(objective, least->staging, result);
      } else if (least && least->proven && !fits) {
        result.proven = true;
        result.lower_bound = result.candidates.best_step();
        return result;
      }
    }
    branch(objective, *tables, configurations, result);
    return result;
  }

  struct Seed {
    double estimate;
    Staging staging;
  };

  /// One number of micro-batches and one schedule.
  struct Configuration {
    int microbatches;
    ScheduleKind schedule;
    std::shared_ptr<detail::RestBottleneck> rest{};  // no optional: g++ 12 warns about it in sorting, without cause
    double bound = 0;
  };

  /// Whether all plain schedules have the same orders, since there is nothing to interleave.
  [[nodiscard]] static bool runs_alike(const StepObjective& objective, int microbatches) {
    return microbatches == 1 || !objective.work().loss_mode;
  }

  /// All configurations, the one with the smallest bound first.
  [[nodiscard]] std::vector<Configuration> all_configurations(const StepObjective& objective, detail::CutTables& tables,
                                                              SearchResult& result) const {
    std::vector<Configuration> all;
    for (const int microbatches : objective.constraints().microbatches) {
      for (const ScheduleKind schedule : objective.constraints().schedules) {
        if (!all.empty() && all.back().microbatches == microbatches && runs_alike(objective, microbatches)) continue;
        all.push_back({microbatches, schedule});
      }
    }
    const auto share = states_of_search(objective) / objective.constraints().budget.part_of_rest /
                       static_cast<std::int64_t>(all.size()) * detail::kTableStepsAState;
    for (Configuration& one : all) {
      auto table = detail::RestBottleneck::make(tables, objective, one.microbatches, one.schedule, share);
      if (table) one.rest = std::make_shared<detail::RestBottleneck>(std::move(*table));
      if (one.rest) result.states += one.rest->work() / detail::kTableStepsAState;
      const auto* rest = one.rest.get();
      one.bound =
          detail::BranchAndBound(objective, tables, rest, one.microbatches, one.schedule, result, 0).root_bound();
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bound < b.bound; });
    return all;
  }

  /// Tries even stagings for every number of stages, and stagings with the fastest slowest stage. The most promising
  /// are improved and simulated.
  void seed(const StepObjective& objective, const std::vector<Configuration>& configurations,
            SearchResult& result) const {
    const Constraints& constraints = objective.constraints();
    detail::LinearCuts cuts(objective);
    LocalSearch local(objective);
    const int most = std::min<int>(constraints.world, static_cast<int>(objective.work().graph.node_count()));
    std::vector<Seed> found;
    for (int stages = 1; stages <= most; ++stages) {
      if (constraints.stages > 0 && stages != constraints.stages) continue;
      const auto replicas = constraints.replicas_are_fixed() ? constraints.fixed_replicas(stages)
                                                             : detail::even_replicas(constraints.world, stages);
      std::optional<Seed> best;
      for (const int microbatches : constraints.microbatches) {
        for (const ScheduleKind schedule : constraints.schedules) {
          auto cut = cuts.cut(replicas, microbatches, schedule);
          if (!cut || !meets(constraints, objective.work(), cut->staging)) continue;
          ++result.states;
          const double estimate = local.estimate(cut->staging);
          if (!best || estimate < best->estimate) best = Seed{estimate, std::move(cut->staging)};
        }
      }
      if (best) found.push_back(std::move(*best));
    }
    for (const Configuration& configuration : configurations) {
      if (!configuration.rest) continue;
      for (int ranks = 1; ranks <= constraints.world; ++ranks) {
        auto staging = configuration.rest->staging(ranks);
        if (!staging || !meets(constraints, objective.work(), *staging)) continue;
        ++result.states;
        const double estimate = local.estimate(*staging);
        found.push_back({estimate, std::move(*staging)});
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const Seed& a, const Seed& b) { return a.estimate < b.estimate; });
    std::vector<Staging> stagings;
    std::int64_t left = constraints.budget.estimate_steps;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool plain = found[i].staging.stages() == 1;  // the plan that everybody knows, for comparison
      if (static_cast<int>(i) >= constraints.budget.starts && !plain) continue;
      add_new(stagings, found[i].staging);
      const std::int64_t each = work_of_estimate(objective, found[i].staging);
      const auto budget = static_cast<int>(std::min<std::int64_t>(constraints.budget.estimates, left / each));
      if (budget <= 0) continue;
      left -= budget * each;
      add_new(stagings, local.improve(std::move(found[i].staging), budget).first);
    }
    offer_all(objective, stagings, result);
  }

  static void add_new(std::vector<Staging>& stagings, Staging staging) {
    if (std::find(stagings.begin(), stagings.end(), staging) == stagings.end()) stagings.push_back(std::move(staging));
  }

  /// Elementary steps of an estimate.
  [[nodiscard]] static std::int64_t work_of_estimate(const StepObjective& objective, const Staging& staging) {
    const std::int64_t stages = staging.stages();
    return static_cast<std::int64_t>(objective.work().graph.node_count()) + stages * stages +
           2 * stages * staging.microbatches + std::int64_t{4} * staging.ranks();
  }

  /// Simulates all of them, except those with many actions. These are compared with one rank for each stage's replicas.
  /// The best are simulated until some take as long as the comparison said. The others are slower, and are known
  /// closely enough.
  static void offer_all(const StepObjective& objective, const std::vector<Staging>& stagings, SearchResult& result) {
    std::vector<Candidate> many;
    const SearchBudget& budget = objective.constraints().budget;
    std::int64_t left = budget.compared_steps;
    for (const Staging& staging : stagings) {
      if (objective.actions(staging) <= budget.many_actions) {
        offer(objective, staging, result);
      } else if (left > 0 || staging.stages() == 1) {
        left -= objective.comparison(staging);
        many.push_back({staging, objective.folded(staging)});
      }
    }
    Candidates::rank(many, objective.constraints().memory);
    int simulated = 0, as_compared = 0;
    for (Candidate& candidate : many) {
      const bool fits = objective.fits(candidate.terms);
      const bool faster = fits && candidate.terms.step < result.candidates.best_step();
      if (faster && simulated < budget.simulated && as_compared < budget.as_compared) {
        const Seconds compared = candidate.terms.step;
        StepTerms terms = objective.simulated(candidate.staging, std::move(candidate.terms));
        ++simulated;
        as_compared += terms.step <= compared * (1 + StepObjective::kFoldedClose) ? 1 : 0;
        result.candidates.offer({std::move(candidate.staging), std::move(terms)});
      } else if (!faster) {
        result.candidates.offer(std::move(candidate));
      }
    }
  }

  static void offer(const StepObjective& objective, const Staging& staging, SearchResult& result) {
    result.candidates.offer({staging, objective(staging)});
  }

  [[nodiscard]] std::int64_t states_of_search(const StepObjective& objective) const {
    const auto& [searches, budget] = std::tie(objective.constraints().searches, objective.constraints().budget);
    return searches == 1 ? budget.states : budget.states / budget.part_of_degrees / searches;
  }

  /// With more ranks less of everything can be searched, and a state takes longer.
  [[nodiscard]] std::int64_t most_states(const StepObjective& objective) const {
    return states_of_search(objective) /
           std::max(1, objective.constraints().ranks() / objective.constraints().budget.full_ranks);
  }

  void branch(const StepObjective& objective, detail::CutTables& tables,
              const std::vector<Configuration>& configurations, SearchResult& result) const {
    std::vector<const Configuration*> open;
    for (const Configuration& one : configurations) open.push_back(&one);
    // What a configuration leaves of its share, and better plans found meanwhile, help configurations that were cut
    // short.
    for (bool again = true; again && !open.empty();) {
      std::vector<const Configuration*> unfinished;
      const std::int64_t before = result.states;
      for (std::size_t i = 0; i < open.size(); ++i) {
        const auto& [microbatches, schedule, rest, bound] = *open[i];
        const auto share = std::max<std::int64_t>(0, most_states(objective) - result.states) /
                           static_cast<std::int64_t>(open.size() - i);
        const auto* table = rest.get();
        detail::BranchAndBound search(objective, tables, table, microbatches, schedule, result, share);
        if (!search.run()) unfinished.push_back(open[i]);
      }
      again = result.states < most_states(objective) && result.states > before;
      open = std::move(unfinished);
    }
    result.proven = open.empty();
    double left = std::numeric_limits<double>::infinity();
    for (const Configuration* one : open) left = std::min(left, one->bound);
    result.lower_bound = std::min({result.candidates.best_step(), objective.constraints().to_beat, Seconds(left)});
  }
};
static_assert(StagingPolicy<ExactStaging>);

}  // namespace autopar
