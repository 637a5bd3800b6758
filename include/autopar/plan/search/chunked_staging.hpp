#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/linear_cuts.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Searches the schedules that give a rank several stages, split backwards or synthesise orders, on equal stages. For
/// each number of positions, and of stages a position (looped or V-shaped), it simulates the cut with the smallest
/// bottleneck. If that is too much, it compares the shapes that would be fastest with equal stages, one rank a
/// position, and simulates the best. Synthesised orders are tried where the other schedules were fastest. Not exact.
/// Other policies search the plain schedules.
struct ChunkedStaging {
  using policy_category = staging_policy_tag;
  bool only_fits = false;  ///< only whether anything fits matters: nothing is simulated if nothing can fit

  [[nodiscard]] static bool is_plain(ScheduleKind kind) { return has_closed_form(kind); }

  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    SearchResult result{Candidates(objective.constraints().memory)};
    add_to(result, objective);
    return result;
  }

  /// Adds what it finds to the result of a search of the plain schedules.
  void add_to(SearchResult& result, const StepObjective& objective) const {
    const Shapes shapes(objective);
    std::vector<Shape> all = shapes.all();
    const bool has_misfits_alone = !result.candidates.any_fits() && !result.candidates.empty();
    if ((only_fits || has_misfits_alone) && !any_may_fit(shapes, all, objective)) return;
    std::int64_t actions = 0;
    for (const Shape& shape : all) actions += shape.actions(objective.constraints().ranks());
    if (actions <= objective.constraints().budget.chunk_actions)
      simulate_all(shapes, all, objective, result);
    else
      simulate_best(shapes, std::move(all), objective, result);
  }

 private:
  /// Equal stages, the same number at each position.
  struct Shape {
    int positions, chunks, microbatches;
    ScheduleKind kind;
    double promise = 0;  ///< about the seconds of an undisturbed step
    [[nodiscard]] std::int64_t actions(int ranks) const { return std::int64_t{6} * chunks * microbatches * ranks; }
  };

  [[nodiscard]] static bool allows(const Constraints& constraints, ScheduleKind kind) {
    return std::find(constraints.schedules.begin(), constraints.schedules.end(), kind) != constraints.schedules.end();
  }
  [[nodiscard]] static bool synthesises(const StepObjective& objective) {
    return allows(objective.constraints(), kSynthesisedSchedule);
  }
  [[nodiscard]] static bool may_synthesise(const StepObjective& objective, const Staging& from) {
    return from.microbatches <= objective.constraints().budget.synthesised_microbatches ||
           objective.constraints().schedules.size() == 1;
  }

  class Shapes;

  /// False if it is known without simulation that nothing fits that would be simulated.
  [[nodiscard]] static bool any_may_fit(const Shapes& shapes, const std::vector<Shape>& all,
                                        const StepObjective& objective) {
    return std::ranges::any_of(all, [&](const Shape& shape) {
      auto staging = shapes.make(shape);
      if (!staging) return false;
      if (allows(objective.constraints(), shape.kind) && objective.may_fit(*staging)) return true;
      if (!synthesises(objective) || !may_synthesise(objective, *staging)) return false;
      staging->schedule = kSynthesisedSchedule;
      return objective.may_fit(*staging);
    });
  }

  void simulate_all(const Shapes& shapes, const std::vector<Shape>& all, const StepObjective& objective,
                    SearchResult& result) const {
    const Constraints& constraints = objective.constraints();
    std::vector<Candidate> tried;
    for (const Shape& shape : all) {
      auto staging = shapes.make(shape);
      if (!staging) continue;
      const bool allowed = allows(constraints, shape.kind);
      if (allowed && !meets(constraints, objective.work(), *staging)) continue;
      if (only_fits && !synthesises(objective) && !objective.may_fit(*staging)) continue;
      tried.push_back({*staging, objective(*staging)});
      if (!allowed) continue;
      ++result.states;
      result.candidates.offer(tried.back());
    }
    if (!synthesises(objective)) return;
    Candidates::rank(tried, objective.constraints().memory);
    const auto most = static_cast<std::size_t>(constraints.budget.synthesised);
    if (tried.size() > most) tried.resize(most);
    for (Candidate& candidate : tried) {
      if (!may_synthesise(objective, candidate.staging)) continue;
      candidate.staging.schedule = kSynthesisedSchedule;
      if (!meets(constraints, objective.work(), candidate.staging)) continue;
      if (only_fits && !objective.may_fit(candidate.staging)) continue;
      ++result.states;
      result.candidates.offer({candidate.staging, objective(candidate.staging)});
    }
  }

  void simulate_best(const Shapes& shapes, std::vector<Shape> all, const StepObjective& objective,
                     SearchResult& result) const {
    std::stable_sort(all.begin(), all.end(), [](const Shape& a, const Shape& b) { return a.promise < b.promise; });
    std::vector<Candidate> tried;
    double best = result.candidates.best_step().value();
    const SearchBudget& budget = objective.constraints().budget;
    std::int64_t left = budget.compared_chunk_actions;
    for (const Shape& shape : all) {
      if (left <= 0 || shape.promise > best * budget.chunk_slack) break;
      auto staging = shapes.make(shape);
      if (!staging) continue;
      left -= objective.comparison(*staging);
      ++result.states;
      tried.push_back({*staging, objective.folded(*staging)});
      if (objective.fits(tried.back().terms)) best = std::min(best, tried.back().terms.step.value());
    }
    Candidates::rank(tried, objective.constraints().memory);
    offer_best(tried, objective, result);
    if (synthesises(objective)) synthesise_best(std::move(tried), objective, result);
  }

  /// Simulates at least one, so that there is something to report if nothing fits.
  void offer_best(const std::vector<Candidate>& tried, const StepObjective& objective, SearchResult& result) const {
    const SearchBudget& budget = objective.constraints().budget;
    std::int64_t left = budget.simulated_chunk_actions;
    for (const Candidate& candidate : tried) {
      const Staging& staging = candidate.staging;
      if (left <= 0 || candidate.terms.step > result.candidates.best_step() * budget.chunk_slack) break;
      if (!allows(objective.constraints(), staging.schedule)) continue;
      if (!meets(objective.constraints(), objective.work(), staging)) continue;
      left -= objective.actions(staging);
      ++result.states;
      result.candidates.offer({staging, objective.simulated(staging, candidate.terms, result.candidates.best_step())});
    }
  }

  /// Synthesises orders on the ranks and with the memory optimizations of the schedule that they start from.
  void synthesise_best(std::vector<Candidate> tried, const StepObjective& objective, SearchResult& result) const {
    const SearchBudget& budget = objective.constraints().budget;
    std::int64_t left = budget.simulated_chunk_actions;
    int count = 0;
    const Seconds limit = result.candidates.best_step() * budget.chunk_slack;
    for (Candidate& candidate : tried) {
      if (left <= 0 || count == budget.synthesised || candidate.terms.step > limit) break;
      Staging& staging = candidate.staging;
      if (!may_synthesise(objective, staging)) continue;
      staging.schedule = kSynthesisedSchedule;
      if (!meets(objective.constraints(), objective.work(), staging)) continue;
      left -= objective.actions(staging);
      ++count;
      ++result.states;
      StepTerms terms = objective.with_orders(staging, std::move(candidate.terms), result.candidates.best_step());
      result.candidates.offer({std::move(staging), std::move(terms)});
    }
  }

  /// Equal stagings of each shape.
  class Shapes {
   public:
    explicit Shapes(const StepObjective& objective) : objective_(objective), cuts_(objective) {}

    /// The shapes of all allowed schedules; if orders are to be synthesised, of all schedules that they could start
    /// from.
    [[nodiscard]] std::vector<Shape> all() const {
      const Constraints& constraints = objective_.constraints();
      const int nodes = static_cast<int>(objective_.work().graph.node_count());
      const auto kinds = kinds_by_layout();
      std::vector<Shape> out;
      // With one position there is no wait to fill: a plain schedule is as fast.
      const bool plain_too = std::ranges::any_of(constraints.schedules, is_plain);
      for (int positions = plain_too ? 2 : 1; positions <= std::min(constraints.world, nodes); ++positions) {
        if (constraints.stages > 0 && positions != constraints.stages) continue;
        const auto replicas = of_positions(positions);
        if (static_cast<int>(replicas.size()) != positions) continue;
        if (std::accumulate(replicas.begin(), replicas.end(), 0) > constraints.world) continue;
        for (const int microbatches : constraints.microbatches) {
          for (const ScheduleKind kind : kinds) {
            if (!allows(constraints, kind) && !synthesises(objective_)) continue;
            for (int chunks = 1; chunks <= constraints.budget.chunks; ++chunks) {
              if (!allows_chunks(traits_of(kind).layout, chunks) || positions * chunks > nodes) continue;
              out.push_back({positions, chunks, microbatches, kind});
              out.back().promise = promise(out.back(), *std::min_element(replicas.begin(), replicas.end()));
            }
          }
        }
      }
      return out;
    }

    /// The staging of a shape; empty if the nodes allow no such cut.
    [[nodiscard]] std::optional<Staging> make(const Shape& shape) const {
      const auto [positions, chunks, microbatches, kind, promised] = shape;
      const auto replicas_of = of_positions(positions);
      std::vector<int> replicas, position_of;
      for (int s = 0; s < positions * chunks; ++s) {
        const int position = position_in(traits_of(kind).layout, s, positions);
        position_of.push_back(position);
        replicas.push_back(replicas_of[static_cast<std::size_t>(position)]);
      }
      auto cut = cuts_.cut(replicas, microbatches, kind);
      if (!cut) return std::nullopt;
      if (chunks > 1) cut->staging.position_of = std::move(position_of);
      return std::move(cut->staging);
    }

   private:
    /// The schedules that are not plain and derive their orders from the pipeline, fewest stages a position first.
    [[nodiscard]] static std::vector<ScheduleKind> kinds_by_layout() {
      std::vector<ScheduleKind> kinds;
      for (const ScheduleTraits& row : kScheduleTraits) {
        if (!is_plain(row.kind) && !row.orders_in_plan) kinds.push_back(row.kind);
      }
      std::ranges::stable_sort(kinds, {}, [](ScheduleKind kind) { return traits_of(kind).layout; });
      return kinds;
    }
    [[nodiscard]] std::vector<int> of_positions(int positions) const {
      return detail::even_replicas(objective_.constraints(), positions);
    }

    /// All micro-batches through one of equal positions, plus the bubble of the schedule's closed form.
    [[nodiscard]] double promise(const Shape& shape, int replicas) const {
      const SliceSizes& slices = objective_.slices().at(shape.microbatches, replicas, shape.positions * shape.chunks);
      const auto [entry, added] = times_.try_emplace(slices.largest);
      NodeCost& whole = entry->second;
      if (added) {
        for (const NodeCost& cost : objective_.work().node_costs(slices.largest)) {
          whole.forward += cost.forward;
          whole.backward += cost.backward;
          whole.backward_weight += cost.backward_weight;
        }
      }
      const double each = (whole.forward + whole.backward).value() / shape.positions;
      const double weight = whole.backward_weight.value() / shape.positions;
      const double bubble = traits_of(shape.kind).bubble(each, weight, shape.chunks);
      return slices.busy_times() * each + (shape.positions - 1) * bubble + after(shape.positions, replicas);
    }

    /// The slowest gradient sum of any position, in the fastest placement, and the update.
    [[nodiscard]] double after(int positions, int replicas) const {
      const auto [entry, added] = after_.try_emplace(positions, std::numeric_limits<double>::infinity());
      if (!added) return entry->second;
      const Workload& work = objective_.work();
      const auto counts = of_positions(positions);
      Bytes trained{};  // of a rank, if stages have equal parts
      for (const ParameterProfile& parameter : work.parameters)
        trained += parameter.trainable ? parameter.bytes : Bytes(0);
      trained = Bytes(trained.value() / positions);
      const auto tensor = objective_.constraints().tensor_of_each(counts.size());
      for (const RankPlacement placement : rank_placements(counts, objective_.cluster(), tensor)) {
        double slowest = 0;
        for (const Mesh& mesh : place(counts, placement, tensor)) {
          if (mesh.replicas() > 1) slowest = std::max(slowest, work.all_reduce(trained, mesh.replica_group(0)).value());
        }
        entry->second = std::min(entry->second, slowest);
      }
      const bool in_shards = objective_.constraints().zero_levels.back() > 0;
      const double update = detail::least_update(work, objective_.constraints(), trained).value();
      return entry->second += update / (in_shards ? replicas : 1);
    }

    const StepObjective& objective_;
    detail::LinearCuts cuts_;
    mutable std::map<std::int64_t, NodeCost> times_;  // of all nodes, by slice
    mutable std::map<int, double> after_;             // by positions
  };
};
static_assert(StagingPolicy<ChunkedStaging>);

namespace detail {

/// Runs a search on the plain schedules, then ChunkedStaging on the others, if any is allowed.
template <class Search>
[[nodiscard]] SearchResult search_all_schedules(const StepObjective& objective, const Search& search,
                                                const ChunkedStaging& others = {}) {
  Constraints plain = objective.constraints();
  std::erase_if(plain.schedules, [](ScheduleKind kind) { return !ChunkedStaging::is_plain(kind); });
  if (plain.schedules.size() == objective.constraints().schedules.size()) return search(objective);
  SearchResult result{Candidates(plain.memory)};
  if (!plain.schedules.empty()) result = search(objective.under(plain));
  others.add_to(result, objective);
  result.proven = false;
  result.lower_bound = {};
  return result;
}

}  // namespace detail

}  // namespace autopar
