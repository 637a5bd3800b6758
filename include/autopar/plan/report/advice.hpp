#pragma once

#include <optional>
#include <string>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/step_timeline.hpp>

namespace autopar {

/// One change, and what it would make of the step.
struct Advice {
  std::string change;           ///< e.g. "10 % faster links"
  std::optional<Seconds> step;  ///< predicted; none = there is no plan
  std::string shape;            ///< of the plan that follows, empty = the same
  std::string why;              ///< where the number comes from, or why there is no plan
  bool is_bound = false;        ///< `step` is a lower bound, which nothing may reach

  /// How much faster than a step of `now` seconds: 0.1 = 10 %. 0 without a plan.
  [[nodiscard]] double gain(Seconds now) const { return step && *step > Seconds{} ? now / *step - 1 : 0; }
};

/// Costs of the same devices with links that are `factor` times as fast; infinity: exchanges take no time.
[[nodiscard]] ProfiledCost with_faster_links(const ProfiledCost& costs, double factor);

/// What a plan itself tells about changes, without another search: its runner-ups that do not fit, the same stages with
/// faster links or nothing recomputed, no waiting, its certificate. Largest gain first; what gains less than 0.1 % is
/// left out.
/// @param timeline  of the plan @pre as `timeline_of`
/// @cost a few simulations of the plan
[[nodiscard]] std::vector<Advice> advice_without_search(const Plan& plan, const ModelProfile& profile,
                                                        const ProfiledCost& costs, const StepTimeline& timeline);

}  // namespace autopar
