#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/multilevel/coarsened.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/search/least_memory.hpp>
#include <autopar/plan/search/tensor_degrees.hpp>
#include <autopar/plan/search_budget.hpp>

namespace autopar::detail {

/// A staging that fits, for messages.
struct Fit {
  Staging staging;
  Bytes peak{};
  StageId stage;  ///< the stage that needs most

  [[nodiscard]] static Fit of(const Candidate& candidate) {
    const auto& stages = candidate.terms.stages;
    const auto most = std::max_element(stages.begin(), stages.end(), [](const StageTerms& a, const StageTerms& b) {
      return a.memory.total() < b.memory.total();
    });
    return {candidate.staging, StepObjective::peak(candidate.terms),
            StageId::of(static_cast<std::size_t>(most - stages.begin()))};
  }
};

/// The answer to a request that may not fit.
struct Trial {
  std::optional<Fit> fit;
  bool certain = true;     ///< if nothing fits: whether the planner would find nothing either
  std::int64_t steps = 0;  ///< elementary ones, about ten nanoseconds each
};

/// Answers requests on clusters, for the same workload. A contradictory request does not fit.
using Trials = std::function<Trial(const PlanRequest&, const Cluster&)>;

/// A request with everything that planning derives from it.
template <class StagingSearch, class Coarsening>
class Attempt {
 public:
  /// @param constraints  of the request, as `resolve` made them
  /// @param work  its own, as an attempt decides the segments @pre the other arguments outlive it
  Attempt(const StagingSearch& staging, const Coarsening& coarsening, Workload work, const Cluster& cluster,
          Constraints constraints)
      : staging_(staging),
        constraints_(std::move(constraints)),
        samples_(std::max<std::int64_t>(1, constraints_.batch / constraints_.world)),
        work_(std::move(work)),
        coarse_(work_, coarsening.coarsen(work_, samples_, std::max(1, constraints_.stages)), cluster, constraints_) {
    set_segments(work_, coarse_.work, coarse_.blocks, constraints_, samples_);
  }

  /// The workload in nodes, with the segments that may be recomputed.
  [[nodiscard]] const Workload& work() const { return work_; }
  [[nodiscard]] const Constraints& constraints() const { return constraints_; }
  [[nodiscard]] const Coarsened& coarse() const { return coarse_; }

  [[nodiscard]] SearchResult search() const {
    SearchResult found = search_degrees(coarse_.objective,
                                        [this](const StepObjective& objective) { return staging_.search(objective); });
    if (coarse_.constraints.tensor_degrees.size() > 1) mix_degrees(found);
    return found;
  }

  /// Offers the staging that needs the least memory, and what fits of several stages a rank: `search` looks for them
  /// near what is fast. It is the planner's answer if a search has found nothing.
  /// @param asked  as in `LeastStaging::best`
  std::optional<LeastMemory> offer_least(SearchResult& found, std::optional<Bytes> asked = {}) const {
    // Schedules that a search leaves out do not change the least memory.
    auto least = found.least ? std::optional(*found.least) : least_memory(asked);
    if (least && (!has_closed_form(least->staging.schedule) || least->fits(coarse_.constraints)))
      found.candidates.offer({least->staging, coarse_.objective(least->staging)});
    if (least && least->proven && !found.candidates.any_fits()) offer_beyond(found);
    return least;
  }

  /// Whether `search` and `offer_least` would find something that fits, without a search for fast stagings.
  [[nodiscard]] Trial trial() const {
    auto least = least_memory(coarse_.constraints.memory);
    // For tensor shards only a lower bound is known.
    if (least && !least->staging.tensor.empty() && least->fits(coarse_.constraints) &&
        !coarse_.objective.fits(coarse_.objective(least->staging))) {
      least.reset();
    }
    Trial out;
    out.certain = least && least->proven;
    if (least) out.steps = least->steps * kStepsAProofStep;
    if (least && has_closed_form(least->staging.schedule) && least->fits(coarse_.constraints)) {
      out.fit = Fit{least->staging, least->peak, least->stage};
      return out;
    }
    SearchResult found = beyond(out.certain);
    if (least && !found.candidates.any_fits() && !has_closed_form(least->staging.schedule))
      found.candidates.offer({least->staging, coarse_.objective(least->staging)});
    out.certain = true;
    if (found.candidates.any_fits()) out.fit = Fit::of(found.candidates.best());
    out.steps += found.states * kStepsAState + kStepsASearch;
    return out;
  }

 private:
  static constexpr bool kMixesDegrees =
      requires(const StagingSearch& staging, const StepObjective& objective, SearchResult& found) {
    staging.search_mixed(objective, found);
  };
  static constexpr bool kLooksBeyond = requires(const StagingSearch& staging, const StepObjective& objective) {
    staging.search_beyond_plain(objective);
  };

  /// The staging with the least memory. If its schedule has no closed form it is simulated, so `asked` is ignored.
  [[nodiscard]] std::optional<LeastMemory> least_memory(std::optional<Bytes> asked) const {
    auto least = least_memory_of_degrees(coarse_.objective, kMixesDegrees, asked);
    if (!asked || !least || has_closed_form(least->staging.schedule)) return least;
    return least_memory_of_degrees(coarse_.objective, kMixesDegrees);
  }

  /// Lets stages have different tensor degrees, if the policy searches them.
  void mix_degrees(SearchResult& found) const {
    if constexpr (kMixesDegrees) {
      found.mixes_degrees = true;
      vary_degrees(coarse_.objective, found);
      SharedRanks(coarse_.objective, found).offer();
      staging_.search_mixed(coarse_.objective, found);
    } else {
      found.proven = found.plain_proven = false;
      found.lower_bound = {};
    }
  }

  void offer_beyond(SearchResult& found) const {
    if constexpr (kLooksBeyond) {
      const Candidates others = beyond(true).candidates;
      if (others.any_fits()) found.candidates.offer(others.best());
    }
  }

  [[nodiscard]] SearchResult beyond(bool least_is_proven) const {
    if constexpr (kLooksBeyond) {
      const auto beyond = [this](const StepObjective& objective) { return staging_.search_beyond_plain(objective); };
      if (least_is_proven) {
        SearchResult found = search_degrees(coarse_.objective, beyond);
        if constexpr (kMixesDegrees) SharedRanks(coarse_.objective, found, true).offer();
        return found;
      }
    }
    return search();
  }

  const StagingSearch& staging_;
  Constraints constraints_;
  std::int64_t samples_;
  Workload work_;
  Coarsened coarse_;
};

}  // namespace autopar::detail
