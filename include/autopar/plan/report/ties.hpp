#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/step/exchanged.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Chooses among candidates whose predicted steps differ by less than predictions are worth: least bytes exchanged,
/// then fewest calls, then least memory. Predictions leave out what exchanging costs beside links: it takes power and
/// memory's bandwidth from the computation.
class Ties {
 public:
  /// @param part  of the best step, by which predicted steps may be longer; 0: only the best is chosen
  Ties(const Workload& work, const Cluster& cluster, const Constraints& constraints, double part)
      : work_(work), cluster_(cluster), constraints_(constraints), part_(part) {}

  struct Choice {
    Candidate candidate;
    std::string note;  ///< what it was chosen over; empty if it is the best predicted
  };
  /// @pre some candidate fits
  [[nodiscard]] Choice choose(const Candidates& candidates) const {
    const Candidate& best = candidates.best();
    if (part_ <= 0 || constraints_.ranks() == 1) return {best, ""};
    const StepObjective objective(work_, cluster_, constraints_);
    std::vector<Candidate> tied{best};
    for (const Candidate& other : candidates.ranked()) {
      if (!candidates.fits(other) || other.terms.step > best.terms.step * (1 + part_) || tied.size() == kMost) break;
      if (other.staging != best.staging) tied.push_back(other);
    }
    const std::size_t shapes = tied.size();
    for (std::size_t i = 0; i < shapes; ++i) add_zero_levels(tied, i, best.terms.step * (1 + part_));
    std::optional<Key> least, of_best;
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < tied.size(); ++i) {
      const Key key{exchanged_in(objective, tied[i].staging, tied[i].terms), StepObjective::peak(tied[i].terms)};
      if (i == 0) of_best = key;
      if (least && !(key < *least)) continue;
      least = key;
      chosen = i;
    }
    return {tied[chosen], chosen == 0 ? "" : note_of(tied[chosen], least->first, best, of_best->first)};
  }

 private:
  using Key = std::pair<Exchanged, Bytes>;
  static constexpr std::size_t kMost = 16;  ///< shapes that are compared

  /// A candidate has the ZeRO level whose predicted step is shortest, if only by a hair.
  void add_zero_levels(std::vector<Candidate>& tied, std::size_t of, Seconds limit) const {
    const Candidate candidate = tied[of];
    if (traits_of(candidate.staging.schedule).orders_in_plan) return;
    for (const int level : constraints_.zero_levels) {
      if (level == candidate.terms.optimizations.zero) continue;
      Constraints own = constraints_;
      own.zero_levels = {level};
      StepTerms terms = StepObjective(work_, cluster_, own).evaluate(candidate.staging, candidate.terms.meshes);
      if (StepObjective::fits(terms, constraints_.memory) && terms.step <= limit)
        tied.push_back({candidate.staging, std::move(terms)});
    }
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
