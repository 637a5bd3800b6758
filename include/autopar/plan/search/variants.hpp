#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/outcome.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>

namespace autopar::detail {

/// The answer of a search for one program: a plan, why there is none, or what the request contradicts.
using ProgramAnswer = std::variant<Plan, Infeasible, Contradiction>;

/// The fastest plan of a request's program and its variants. Programs differ in memory and in what can be cut, so one
/// may fit, or admit a tensor degree, where another does not.
class VariantSearch {
 public:
  /// @param own  searches the request's own program
  /// @param of   searches a variant; both with or without remedies
  template <class Own, class Of>
  [[nodiscard]] static PlanOutcome run(const PlanRequest& request, const Own& own, const Of& of) {
    VariantSearch search;
    search.offer(own(request.remedies && request.variants.empty()));
    for (const ProgramVariant& variant : request.variants) {
      const Plan* best = search.best_ ? &*search.best_ : nullptr;
      if (variant.is_worth && !variant.is_worth(best)) continue;
      search.offer(of(variant, false), variant);
    }
    if (search.best_) return *std::move(search.best_);
    if (request.remedies && !request.variants.empty()) search.explain(own, of);
    if (!search.why_) search.contradiction_->raise();
    return *std::move(search.why_);
  }

 private:
  void offer(ProgramAnswer answer) {
    if (auto* plan = std::get_if<Plan>(&answer)) best_ = std::move(*plan);
    if (auto* why = std::get_if<Infeasible>(&answer)) why_ = std::move(*why);
    if (auto* contradiction = std::get_if<Contradiction>(&answer)) contradiction_ = std::move(*contradiction);
  }

  void offer(ProgramAnswer answer, const ProgramVariant& variant) {
    auto* plan = std::get_if<Plan>(&answer);
    if (plan == nullptr) {
      refused_.emplace_back(&variant, std::move(answer));
      return;
    }
    if (best_ && plan->step >= best_->step) {
      if (variant.passed_note) best_->notes.push_back(variant.passed_note(plan->step));
      return;
    }
    if (variant.chosen_note)
      plan->notes.push_back(variant.chosen_note(best_ ? std::optional(best_->step) : std::nullopt));
    best_ = std::move(*plan);
  }

  /// Looks for remedies of the program that needs least memory.
  template <class Own, class Of>
  void explain(const Own& own, const Of& of) {
    if (why_) offer(own(true));
    for (const auto& [variant, answer] : refused_) {
      const auto* bare = std::get_if<Infeasible>(&answer);
      if (bare == nullptr || (bare->needed > Bytes(0) && !needs_less(*bare))) continue;
      ProgramAnswer explained = of(*variant, true);
      if (auto* why = std::get_if<Infeasible>(&explained); why != nullptr && needs_less(*why)) why_ = std::move(*why);
    }
  }

  [[nodiscard]] bool needs_less(const Infeasible& other) const {
    return !why_ || (other.needed > Bytes(0) && other.needed < why_->needed);
  }

  std::optional<Plan> best_;
  std::optional<Infeasible> why_;               ///< why no program so far fits, for the one that needs least
  std::optional<Contradiction> contradiction_;  ///< of the request's own program
  std::vector<std::pair<const ProgramVariant*, ProgramAnswer>> refused_;
};

}  // namespace autopar::detail
