#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/step/exchanged.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Chooses among plans whose predicted steps differ by less than predictions are worth.
///
/// Replicas of the whole model come before all other stagings: their ranks wait for one another only to sum gradients.
/// Each further exchange waits for the slower rank, which predictions leave out (benchmarks/NOTES.md: 5 % of a step).
/// Otherwise it is the best staging. Predictions of other ones may be further off: a stage of tensor shards ran 38 %
/// longer than predicted.
///
/// Then its ZeRO level: least bytes exchanged, then fewest calls, then least memory. Predictions leave out what
/// exchanging costs beside links: it takes power and memory's bandwidth from the computation.
class Ties {
 public:
  /// @param part  of the best step, by which predicted steps may be longer; 0: only the best is chosen
  Ties(const Workload& work, const Cluster& cluster, const Constraints& constraints, double part)
      : work_(work), cluster_(cluster), constraints_(constraints), part_(part) {}

  struct Choice {
    Candidate candidate;
    std::string note;  ///< what it was chosen over; empty if it is the best predicted
  };
  /// @param candidates  any of them fits
  [[nodiscard]] Choice choose(const Candidates& candidates) const {
    const Candidate& best = candidates.best();
    if (part_ <= 0) return {best, ""};
    const Seconds longest = best.terms.step * (1 + part_);
    const Candidate staged = replicas_of_all(candidates, longest).value_or(best);
    if (traits_of(staged.staging.schedule).orders_in_plan) return {staged, ""};
    const StepObjective objective(work_, cluster_, constraints_);
    const auto key_of = [&](const StepTerms& terms) {
      return std::pair(exchanged_in(objective, staged.staging, terms), StepObjective::peak(terms));
    };
    auto least = key_of(staged.terms);
    StepTerms chosen = staged.terms;
    bool is_best = staged.staging == best.staging;
    for (StepTerms& terms : other_levels(staged, longest)) {
      const auto key = key_of(terms);
      if (!(key < least)) continue;
      least = key;
      chosen = std::move(terms);
      is_best = false;
    }
    Choice choice{{staged.staging, std::move(chosen)}, ""};
    if (!is_best)
      choice.note = note_of(choice.candidate, least.first, best, exchanged_in(objective, best.staging, best.terms));
    return choice;
  }

 private:
  /// The best of those that have the whole model on each rank, if it fits and takes no longer.
  [[nodiscard]] std::optional<Candidate> replicas_of_all(const Candidates& candidates, Seconds longest) const {
    for (const Candidate& candidate : candidates.ranked()) {
      if (candidate.terms.step > longest) break;
      const Staging& staging = candidate.staging;
      if (staging.stages() == 1 && staging.tensor.empty() && staging.ranks() == constraints_.world &&
          candidates.fits(candidate))
        return candidate;
    }
    return std::nullopt;
  }

  /// Predictions of the same stages on the same ranks that fit and take no longer.
  [[nodiscard]] std::vector<StepTerms> other_levels(const Candidate& of, Seconds longest) const {
    std::vector<StepTerms> tied;
    for (const int level : constraints_.zero_levels) {
      if (level == of.terms.optimizations.zero) continue;
      Constraints own = constraints_;
      own.zero_levels = {level};
      StepTerms terms = StepObjective(work_, cluster_, own).evaluate(of.staging, of.terms.meshes);
      if (StepObjective::fits(terms, constraints_.memory) && terms.step <= longest) tied.push_back(std::move(terms));
    }
    return tied;
  }

  [[nodiscard]] std::string note_of(const Candidate& chosen, const Exchanged& own, const Candidate& best,
                                    const Exchanged& others) const {
    const auto sends = [](const Exchanged& exchanged) {
      return readable(exchanged.bytes) + " a step in " + std::to_string(exchanged.calls) + " calls";
    };
    return "chosen among ties, whose predicted steps differ by at most " + formatted("%g", 100 * part_) +
           " %: ranks send " + sends(own) + "; best predicted: " + describe(best.staging) +
           describe(best.terms.optimizations) + ", " + readable(best.terms.step) + " instead of " +
           readable(chosen.terms.step) + ", ranks send " + sends(others);
  }

  const Workload& work_;
  const Cluster& cluster_;
  const Constraints& constraints_;
  double part_;
};

}  // namespace autopar::detail
