#pragma once

#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/step/exchanged.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Chooses among ZeRO levels of the best staging whose predicted steps differ by less than predictions are worth: least
/// bytes exchanged, then fewest calls, then least memory. Predictions leave out what exchanging costs beside links: it
/// takes power and memory's bandwidth from the computation. Other stagings are not compared, as their
/// predictions may be further off: a stage of tensor shards ran 38 % longer than predicted (benchmarks/NOTES.md).
class Ties {
 public:
  /// @param part  of the best step, by which predicted steps may be longer; 0: only the best is chosen
  Ties(const Workload& work, const Cluster& cluster, const Constraints& constraints, double part)
      : work_(work), cluster_(cluster), constraints_(constraints), part_(part) {}

  struct Choice {
    Candidate candidate;
    std::string note;  ///< what it was chosen over; empty if it is the best predicted
  };
  /// @pre it fits
  [[nodiscard]] Choice choose(const Candidate& best) const {
    if (part_ <= 0 || traits_of(best.staging.schedule).orders_in_plan) return {best, ""};
    const StepObjective objective(work_, cluster_, constraints_);
    const auto key_of = [&](const StepTerms& terms) {
      return std::pair(exchanged_in(objective, best.staging, terms), StepObjective::peak(terms));
    };
    const auto of_best = key_of(best.terms);
    auto least = of_best;
    StepTerms chosen = best.terms;
    for (StepTerms& terms : other_levels(best)) {
      const auto key = key_of(terms);
      if (!(key < least)) continue;
      least = key;
      chosen = std::move(terms);
    }
    const bool is_best = least == of_best;
    Choice choice{{best.staging, std::move(chosen)}, ""};
    if (!is_best) choice.note = note_of(choice.candidate, least.first, best, of_best.first);
    return choice;
  }

 private:
  /// Predictions of the same stages on the same ranks that fit and are as good.
  [[nodiscard]] std::vector<StepTerms> other_levels(const Candidate& best) const {
    std::vector<StepTerms> tied;
    for (const int level : constraints_.zero_levels) {
      if (level == best.terms.optimizations.zero) continue;
      Constraints own = constraints_;
      own.zero_levels = {level};
      StepTerms terms = StepObjective(work_, cluster_, own).evaluate(best.staging, best.terms.meshes);
      if (StepObjective::fits(terms, constraints_.memory) && terms.step <= best.terms.step * (1 + part_))
        tied.push_back(std::move(terms));
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
