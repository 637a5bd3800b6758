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

namespace detail {

/// Equal stages, the same number at each position.
struct ChunkShape {
  int positions, chunks, microbatches;
  ScheduleKind kind;
  double promise = 0;  ///< about the seconds of an undisturbed step
  [[nodiscard]] std::int64_t actions(int ranks) const { return std::int64_t{6} * chunks * microbatches * ranks; }
};

/// Equal stagings of each shape.
class ChunkShapes {
 public:
  explicit ChunkShapes(const StepObjective& objective) : objective_(objective), cuts_(objective) {}

  /// The shapes of all allowed schedules; if orders are to be synthesised, of all schedules that they could start
  /// from.
  [[nodiscard]] std::vector<ChunkShape> all() const {
    const Constraints& constraints = objective_.constraints();
    const int nodes = static_cast<int>(objective_.work().graph.node_count());
    const auto kinds = kinds_by_layout();
    std::vector<ChunkShape> out;
    // With one position there is no wait to fill: a plain schedule is as fast.
    const bool plain_too = std::ranges::any_of(constraints.schedules, has_closed_form);
    for (int positions = plain_too ? 2 : 1; positions <= std::min(constraints.world, nodes); ++positions) {
      if (constraints.stages > 0 && positions != constraints.stages) continue;
      const auto replicas = of_positions(positions);
      if (static_cast<int>(replicas.size()) != positions) continue;
      if (std::accumulate(replicas.begin(), replicas.end(), 0) > constraints.world) continue;
      for (const int microbatches : constraints.microbatches) {
        for (const ScheduleKind kind : kinds) {
          if (!constraints.allows(kind) && !constraints.allows(kSynthesisedSchedule)) continue;
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
  [[nodiscard]] std::optional<Staging> make(const ChunkShape& shape) const {
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
      if (!has_closed_form(row.kind) && !row.orders_in_plan) kinds.push_back(row.kind);
    }
    std::ranges::stable_sort(kinds, {}, [](ScheduleKind kind) { return traits_of(kind).layout; });
    return kinds;
  }
  [[nodiscard]] std::vector<int> of_positions(int positions) const {
    return even_replicas(objective_.constraints(), positions);
  }

  /// All micro-batches through one of equal positions, plus the bubble of the schedule's closed form.
  [[nodiscard]] double promise(const ChunkShape& shape, int replicas) const {
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
    const Bytes sent = objective_.constraints().buckets.least_sent(trained);
    const auto tensor = objective_.constraints().tensor_of_each(counts.size());
    for (const RankPlacement placement : rank_placements(counts, objective_.cluster(), tensor)) {
      double slowest = 0;
      for (const Mesh& mesh : place(counts, placement, tensor)) {
        if (mesh.replicas() > 1) slowest = std::max(slowest, work.all_reduce(sent, mesh.replica_group(0)).value());
      }
      entry->second = std::min(entry->second, slowest);
    }
    const bool in_shards = objective_.constraints().zero_levels.back() > 0;
    const double update = least_update(work, objective_.constraints(), trained).value();
    return entry->second += update / (in_shards ? replicas : 1);
  }

  const StepObjective& objective_;
  LinearCuts cuts_;
  mutable std::map<std::int64_t, NodeCost> times_;  // of all nodes, by slice
  mutable std::map<int, double> after_;             // by positions
};

/// Adds what ChunkedStaging finds to the result of a search.
class ChunkedSearch {
 public:
  /// @param only_fits  see ChunkedStaging
  ChunkedSearch(const StepObjective& objective, SearchResult& result, bool only_fits)
      : objective_(objective),
        constraints_(objective.constraints()),
        budget_(constraints_.budget),
        result_(result),
        only_fits_(only_fits),
        synthesises_(constraints_.allows(kSynthesisedSchedule)),
        shapes_(objective) {}

  void run() {
    std::vector<ChunkShape> all = shapes_.all();
    const bool has_misfits_alone = !result_.candidates.any_fits() && !result_.candidates.empty();
    if ((only_fits_ || has_misfits_alone) && !any_may_fit(all)) return;
    std::int64_t actions = 0;
    for (const ChunkShape& shape : all) actions += shape.actions(constraints_.ranks());
    const bool few = actions <= budget_.chunk_actions;
    std::vector<Candidate> tried = few ? simulated(all) : compared(std::move(all));
    Candidates::rank(tried, constraints_.memory);
    if (!few) offer_best(tried);
    if (synthesises_) synthesise_best(tried, few);
  }

 private:
  [[nodiscard]] bool may_synthesise(const Staging& from) const {
    return from.microbatches <= budget_.synthesised_microbatches || constraints_.schedules.size() == 1;
  }
  void offer(Candidate candidate) {
    ++result_.states;
    result_.candidates.offer(std::move(candidate));
  }

  /// False if it is known without simulation that nothing fits that would be simulated.
  [[nodiscard]] bool any_may_fit(const std::vector<ChunkShape>& all) const {
    return std::ranges::any_of(all, [&](const ChunkShape& shape) {
      auto staging = shapes_.make(shape);
      if (!staging) return false;
      if (constraints_.allows(shape.kind) && objective_.may_fit(*staging)) return true;
      if (!synthesises_ || !may_synthesise(*staging)) return false;
      staging->schedule = kSynthesisedSchedule;
      return objective_.may_fit(*staging);
    });
  }

  /// Simulates all shapes. Those of schedules that are not allowed are only starts for synthesised orders.
  [[nodiscard]] std::vector<Candidate> simulated(const std::vector<ChunkShape>& all) {
    std::vector<Candidate> tried;
    for (const ChunkShape& shape : all) {
      auto staging = shapes_.make(shape);
      if (!staging) continue;
      const bool allowed = constraints_.allows(shape.kind);
      if (allowed && !meets(constraints_, objective_.work(), *staging)) continue;
      if (only_fits_ && !synthesises_ && !objective_.may_fit(*staging)) continue;
      StepTerms terms = objective_(*staging);
      tried.push_back({std::move(*staging), std::move(terms)});
      if (allowed) offer(tried.back());
    }
    return tried;
  }

  /// Compares the shapes that promise most, with one rank a position.
  [[nodiscard]] std::vector<Candidate> compared(std::vector<ChunkShape> all) {
    std::ranges::stable_sort(all, {}, &ChunkShape::promise);
    std::vector<Candidate> tried;
    double best = result_.candidates.best_step().value();
    std::int64_t left = budget_.compared_chunk_actions;
    for (const ChunkShape& shape : all) {
      if (left <= 0 || shape.promise > best * budget_.chunk_slack) break;
      auto staging = shapes_.make(shape);
      if (!staging) continue;
      left -= objective_.comparison(*staging);
      ++result_.states;
      tried.push_back({*staging, objective_.folded(*staging)});
      if (objective_.fits(tried.back().terms)) best = std::min(best, tried.back().terms.step.value());
    }
    return tried;
  }

  /// Simulates at least one, so that there is something to report if nothing fits.
  void offer_best(const std::vector<Candidate>& tried) {
    std::int64_t left = budget_.simulated_chunk_actions;
    for (const auto& [staging, terms] : tried) {
      const Seconds best = result_.candidates.best_step();
      if (left <= 0 || terms.step > best * budget_.chunk_slack) break;
      if (!meets(constraints_, objective_.work(), staging)) continue;
      left -= objective_.actions(staging);
      offer({staging, objective_.simulated(staging, terms, best)});
    }
  }

  /// Synthesises orders. Those of many actions run on the ranks and with the memory optimizations of the schedule from
  /// which they start.
  void synthesise_best(std::vector<Candidate>& tried, bool few) {
    std::int64_t left = few ? std::numeric_limits<std::int64_t>::max() : budget_.simulated_chunk_actions;
    int count = 0;
    const Seconds limit = few ? StepObjective::kNoLimit : result_.candidates.best_step() * budget_.chunk_slack;
    for (auto& [staging, start] : tried) {
      if (left <= 0 || count == budget_.synthesised || start.step > limit) break;
      if (!may_synthesise(staging)) continue;
      staging.schedule = kSynthesisedSchedule;
      if (!meets(constraints_, objective_.work(), staging)) continue;
      if (few && only_fits_ && !objective_.may_fit(staging)) continue;
      left -= objective_.actions(staging);
      ++count;
      StepTerms terms =
          few ? objective_(staging) : objective_.with_orders(staging, std::move(start), result_.candidates.best_step());
      offer({std::move(staging), std::move(terms)});
    }
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  const SearchBudget& budget_;
  SearchResult& result_;
  bool only_fits_, synthesises_;
  ChunkShapes shapes_;
};

}  // namespace detail

/// Searches the schedules that give a rank several stages, split backwards or synthesise orders, on equal stages. For
/// each number of positions, and of stages a position (looped or V-shaped), it simulates the cut with the smallest
/// bottleneck. If that is too much, it compares the shapes that would be fastest with equal stages, one rank a
/// position, and simulates the best. Synthesised orders are tried where the other schedules were fastest. Not exact.
/// Other policies search the plain schedules.
struct ChunkedStaging {
  using policy_category = staging_policy_tag;
  bool only_fits = false;  ///< only whether anything fits matters: nothing is simulated if nothing can fit

  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    SearchResult result{Candidates(objective.constraints().memory)};
    add_to(result, objective);
    return result;
  }

  /// Adds what it finds to the result of a search of the plain schedules.
  void add_to(SearchResult& result, const StepObjective& objective) const {
    detail::ChunkedSearch(objective, result, only_fits).run();
  }
};
static_assert(StagingPolicy<ChunkedStaging>);

namespace detail {

/// With the plain schedules alone: one stage a rank, whole backwards.
[[nodiscard]] inline Constraints plain_part(Constraints constraints) {
  std::erase_if(constraints.schedules, [](ScheduleKind kind) { return !has_closed_form(kind); });
  return constraints;
}

/// Runs a search on the plain schedules, then ChunkedStaging on the others, if any is allowed. A single rank waits for
/// nobody, so no other schedule is faster there.
template <class Search>
[[nodiscard]] SearchResult search_all_schedules(const StepObjective& objective, const Search& search,
                                                const ChunkedStaging& others = {}) {
  const Constraints plain = plain_part(objective.constraints());
  if (plain.schedules.size() == objective.constraints().schedules.size()) return search(objective);
  if (plain.ranks() == 1 && !plain.schedules.empty()) return search(objective.under(plain));
  SearchResult result{Candidates(plain.memory)};
  if (!plain.schedules.empty()) result = search(objective.under(plain));
  others.add_to(result, objective);
  result.plain_proven = std::exchange(result.proven, false);
  result.lower_bound = {};
  return result;
}

}  // namespace detail

}  // namespace autopar
