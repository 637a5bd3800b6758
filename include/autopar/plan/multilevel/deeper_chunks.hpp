#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/multilevel/balanced_chunks.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Divides pipelines into more stages a position than blocks of nodes allow: a bubble is a few stages long, so it
/// shrinks with each division, until messages outweigh that. Stages come round the positions, as `interleaved` has
/// them; orders are synthesised for the best number of stages.
class DeeperChunks {
 public:
  /// @pre the objective outlives it
  explicit DeeperChunks(const StepObjective& objective)
      : objective_(objective), constraints_(objective.constraints()), left_(constraints_.budget.deeper_actions) {}

  /// @param ranked  of the objective's nodes: what fits first, then by step
  /// @return divisions that are faster than the candidates from which they come
  [[nodiscard]] std::vector<Candidate> of(const std::vector<Candidate>& ranked) {
    std::vector<Candidate> out;
    const bool synthesises = constraints_.allows(kSynthesisedSchedule);
    if (!synthesises && !constraints_.allows(kLooped)) return out;
    std::vector<std::vector<int>> seen;  // replicas of positions
    for (const Candidate& start : ranked) {
      if (seen.size() == constraints_.budget.deepened || !objective_.fits(start.terms)) break;
      if (start.terms.step > ranked.front().terms.step * constraints_.budget.refined_slack) break;
      const auto replicas = start.staging.replicas_of_positions();
      if (replicas.size() < 2 || !start.staging.tensor.empty() || std::ranges::find(seen, replicas) != seen.end())
        continue;
      if (start.terms.computing > ranked.front().terms.step * (1 - constraints_.budget.deeper_gain))
        continue;  // whatever the bubble
      seen.push_back(replicas);
      auto best = deepest(start, replicas);
      if (!best) continue;
      Seconds limit = StepObjective::kNoLimit;  // of two orders of the same stages the faster one counts
      if (synthesises && best->staging.microbatches <= constraints_.budget.synthesised_microbatches) {
        Candidate synthesised = with_orders(*best);
        if (objective_.fits(synthesised.terms)) limit = synthesised.terms.step;
        add(out, std::move(synthesised), start);
      }
      if (constraints_.allows(kLooped)) {
        best->terms = objective_.simulated(best->staging, std::move(best->terms), limit);
        add(out, std::move(*best), start);
      }
    }
    return out;
  }

 private:
  static constexpr ScheduleKind kLooped =
      first_schedule([](const auto& row) { return row.layout == StageLayout::kLooped; });

  void add(std::vector<Candidate>& out, Candidate candidate, const Candidate& start) const {
    if (meets(constraints_, objective_.work(), candidate.staging) && candidate.terms.step < start.terms.step)
      out.push_back(std::move(candidate));
  }

  /// The best number of stages a position and of micro-batches under the looped schedule, compared with one rank a
  /// position.
  [[nodiscard]] std::optional<Candidate> deepest(const Candidate& start, const std::vector<int>& replicas) {
    const auto positions = static_cast<int>(replicas.size());
    const int chunks = start.staging.stages() / positions;
    const auto nodes = static_cast<int>(objective_.work().graph.node_count());
    const bool together = place(start.staging, RankPlacement::kReplicasTogether) == start.terms.meshes;
    const auto placement = together ? RankPlacement::kReplicasTogether : RankPlacement::kStagesTogether;
    std::optional<Candidate> best;
    int misses = 0;
    for (int more = chunks; more * positions <= nodes && misses < 2; more += std::max(1, more / 4)) {
      bool improves = false;
      for (const int microbatches : near(best ? best->staging.microbatches : start.staging.microbatches, positions)) {
        auto candidate = divided(start, placement, replicas, more, microbatches);
        if (!candidate || (best && !is_better(candidate->terms, best->terms))) continue;
        improves = true;
        best = std::move(candidate);
      }
      misses = improves ? 0 : misses + 1;
    }
    return best;
  }
  [[nodiscard]] bool is_better(const StepTerms& a, const StepTerms& b) const {
    return std::pair(!objective_.fits(a), a.step) <
           std::pair(!objective_.fits(b), b.step * (1 - constraints_.budget.deeper_gain));
  }

  /// This number of micro-batches, its neighbours among those that are allowed, and its neighbours that divide evenly
  /// among the positions, as the looped schedule wants them.
  [[nodiscard]] std::set<int> near(int microbatches, int positions) const {
    std::set<int> out{microbatches};
    for (const int multiple : {1, positions}) {
      int below = 0, above = 0;
      for (const int allowed : constraints_.microbatches) {
        if (allowed % multiple != 0) continue;
        if (allowed < microbatches) below = allowed;
        if (allowed > microbatches && above == 0) above = allowed;
      }
      for (const int other : {below, above}) {
        if (other > 0) out.insert(other);
      }
    }
    return out;
  }

  /// At the ZeRO level and on the ranks of the start.
  [[nodiscard]] std::optional<Candidate> divided(const Candidate& start, RankPlacement placement,
                                                 const std::vector<int>& replicas, int chunks, int microbatches) {
    const auto positions = static_cast<int>(replicas.size());
    Staging staging{start.staging.stage_of, {}, microbatches, kLooped};
    for (int s = 0; s < positions * chunks; ++s) {
      staging.position_of.push_back(s % positions);
      staging.replicas.push_back(replicas[static_cast<std::size_t>(s % positions)]);
    }
    left_ -= objective_.comparison(staging);
    if (left_ < 0) return std::nullopt;
    staging = balanced_chunks(objective_, std::move(staging));
    if (chunks == 1) staging.position_of.clear();
    const SizedPipeline sized = objective_.pipeline(staging, place(staging, placement));
    const auto& [zero, recomputed, offload, sequence] = start.terms.optimizations;
    StepTerms terms = objective_.folded(
        staging, sized, objective_.optimizations(staging, sized, {zero, {}, offload, sequence}, constraints_.memory));
    return Candidate{std::move(staging), std::move(terms)};
  }

  /// With synthesised orders; of many actions, on the ranks and with the memory optimizations of the looped schedule.
  [[nodiscard]] Candidate with_orders(const Candidate& looped) const {
    Staging staging = looped.staging;
    staging.schedule = kSynthesisedSchedule;
    const bool few = objective_.actions(staging) <= constraints_.budget.synthesised_actions;
    StepTerms terms = few ? objective_(staging) : objective_.with_orders(staging, looped.terms);
    return {std::move(staging), std::move(terms)};
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  std::int64_t left_;  // elementary steps of comparisons
};

}  // namespace autopar::detail
