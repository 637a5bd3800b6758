#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/uniform_staging.hpp>

namespace autopar {

/// The schedules that give a rank several stages, part backwards or synthesise orders, on equal stages: for each number
/// of positions and of stages a position (in loops, or there and back) the cut with the smallest bottleneck, simulated.
/// Synthesised orders are tried where the others were fastest. Not exact. The plain schedules are for
/// other policies.
struct ChunkedStaging {
  using policy_category = staging_policy_tag;
  int max_chunks = 4;   ///< stages a position
  int synthesised = 6;  ///< stagings for which orders are synthesised

  [[nodiscard]] static bool is_plain(ScheduleKind kind) {
    return kind == ScheduleKind::kGPipe || kind == ScheduleKind::kOneFOneB;
  }

  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    SearchResult result{Candidates(objective.constraints().memory)};
    add_to(result, objective);
    return result;
  }

  /// Offers what it finds to a search that is done with the plain schedules.
  void add_to(SearchResult& result, const StepObjective& objective) const {
    const Constraints& constraints = objective.constraints();
    Shapes shapes(objective);
    std::vector<Candidate> tried;
    const auto consider = [&](Staging staging) {
      if (!meets(constraints, objective.work(), staging)) return;
      ++result.states;
      tried.push_back({staging, objective(staging)});
      result.candidates.offer(tried.back());
    };
    const bool synthesise = allows(constraints, ScheduleKind::kSynthesised);
    // On one position there is nothing to fill a wait with: a plain schedule is as fast.
    const bool plain_too = std::ranges::any_of(constraints.schedules, is_plain);
    for (int positions = plain_too ? 2 : 1; positions <= constraints.world; ++positions) {
      if (constraints.stages > 0 && positions != constraints.stages) continue;
      for (const int microbatches : constraints.microbatches) {
        for (const ScheduleKind kind : {ScheduleKind::kZbH1, ScheduleKind::kInterleaved, ScheduleKind::kZbV}) {
          // Synthesised orders start from shapes on which the others were tried, allowed or not.
          if (!allows(constraints, kind) && !synthesise) continue;
          for (int chunks = 1; chunks <= max_chunks; ++chunks) {
            auto staging = shapes.make(positions, chunks, microbatches, kind);
            if (!staging) continue;
            if (allows(constraints, kind)) consider(std::move(*staging));
            else tried.push_back({*staging, objective(*staging)});
          }
        }
      }
    }
    if (!synthesise) return;
    std::stable_sort(tried.begin(), tried.end(), [&](const Candidate& a, const Candidate& b) {
      return std::pair(!objective.fits(a.terms), a.terms.step) < std::pair(!objective.fits(b.terms), b.terms.step);
    });
    if (static_cast<int>(tried.size()) > synthesised) tried.resize(static_cast<std::size_t>(synthesised));
    for (Staging staging : stagings_of(std::move(tried))) {
      staging.schedule = ScheduleKind::kSynthesised;
      consider(std::move(staging));
    }
  }

 private:
  [[nodiscard]] static bool allows(const Constraints& constraints, ScheduleKind kind) {
    return std::find(constraints.schedules.begin(), constraints.schedules.end(), kind) != constraints.schedules.end();
  }

  [[nodiscard]] static std::vector<Staging> stagings_of(std::vector<Candidate> candidates) {
    std::vector<Staging> out;
    for (Candidate& candidate : candidates) out.push_back(std::move(candidate.staging));
    return out;
  }

  /// Equal stagings of each shape.
  class Shapes {
   public:
    explicit Shapes(const StepObjective& objective) : objective_(objective), cuts_(objective) {}

    /// Nothing if the schedule has no such shape, or there are more stages than nodes.
    [[nodiscard]] std::optional<Staging> make(int positions, int chunks, int microbatches, ScheduleKind kind) const {
      const bool v_shaped = kind == ScheduleKind::kZbV;
      const bool has_shape = kind == ScheduleKind::kZbH1 ? chunks == 1 : v_shaped ? chunks == 2 : chunks >= 2;
      if (!has_shape) return std::nullopt;
      const Constraints& constraints = objective_.constraints();
      const auto of_positions = constraints.replicas_are_fixed() ? constraints.fixed_replicas(positions)
                                                                 : detail::even_replicas(constraints.world, positions);
      if (static_cast<int>(of_positions.size()) != positions) return std::nullopt;
      std::vector<int> replicas, position_of;
      for (int s = 0; s < positions * chunks; ++s) {
        const int position = v_shaped ? std::min(s, 2 * positions - 1 - s) : s % positions;
        position_of.push_back(position);
        replicas.push_back(of_positions[static_cast<std::size_t>(position)]);
      }
      auto cut = cuts_.cut(replicas, microbatches, kind);
      if (!cut) return std::nullopt;
      if (chunks > 1) cut->staging.position_of = std::move(position_of);
      return std::move(cut->staging);
    }

   private:
    const StepObjective& objective_;
    detail::LinearCuts cuts_;
  };
};
static_assert(StagingPolicy<ChunkedStaging>);

namespace detail {

/// Runs a search on the plain schedules, then ChunkedStaging on the others, if any is allowed.
template <class Search>
[[nodiscard]] SearchResult search_all_schedules(const StepObjective& objective, const Search& search) {
  Constraints plain = objective.constraints();
  std::erase_if(plain.schedules, [](ScheduleKind kind) { return !ChunkedStaging::is_plain(kind); });
  if (plain.schedules.size() == objective.constraints().schedules.size()) return search(objective);
  SearchResult result{Candidates(plain.memory)};
  if (!plain.schedules.empty()) result = search(StepObjective(objective.work(), objective.cluster(), plain));
  ChunkedStaging{}.add_to(result, objective);
  result.proven = false;
  result.lower_bound = {};
  return result;
}

}  // namespace detail

}  // namespace autopar
