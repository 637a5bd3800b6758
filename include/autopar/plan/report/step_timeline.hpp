#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/enum_text.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// A backward in two parts is kBackwardInput and kBackwardWeight.
enum class BarKind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSend,
  kReceive,
  kCollective,
  kUpdate
};
template <>
inline constexpr auto kEnumTexts<BarKind> =
    std::to_array<EnumText<BarKind>>({{BarKind::kForward, "forward"},
                                      {BarKind::kBackward, "backward"},
                                      {BarKind::kBackwardInput, "backward-input"},
                                      {BarKind::kBackwardWeight, "backward-weight"},
                                      {BarKind::kSend, "send"},
                                      {BarKind::kReceive, "receive"},
                                      {BarKind::kCollective, "reduce"},
                                      {BarKind::kUpdate, "update"}});

/// Whether a rank can do nothing else of its kind meanwhile, as opposed to what travels beside it.
[[nodiscard]] constexpr bool computes(BarKind kind) {
  return kind != BarKind::kSend && kind != BarKind::kReceive && kind != BarKind::kCollective;
}

/// One thing that a rank does, in seconds since the step began; predicted or measured.
struct Bar {
  BarKind kind = BarKind::kForward;
  Rank rank;
  int microbatch = -1;  ///< -1 = none
  std::string what;     ///< in words
  Seconds begin{}, end{};
  StageId stage{};  ///< of a forward, backward or update; invalid = none
};

[[nodiscard]] BarKind bar_kind_of(const Action& action);
/// The bar of an action that a rank ran.
[[nodiscard]] Bar bar_of(const Action& action, Rank rank, Seconds begin, Seconds end);

/// The predicted timeline of one step of a plan.
struct StepTimeline {
  std::vector<Bar> bars;                 ///< rank by rank, each in the order of its program
  Seconds step{};                        ///< optimizer's update included
  std::vector<Seconds> busy;             ///< [rank] computing, update included
  std::vector<std::vector<int>> stages;  ///< [rank] that it runs, ascending; none = idle

  /// Share of the step in which a rank computes nothing.
  [[nodiscard]] double waiting(Rank rank) const { return step > Seconds{} ? 1 - busy[rank.index()] / step : 0; }
};

/// "stage 1", "stages 0, 5" or "idle".
[[nodiscard]] std::string stages_of(const StepTimeline& timeline, Rank rank);

/// Simulates a plan once more, with every action kept. Its step is the planner's, under the planner's costs.
/// @throws InvalidArgument unless plan, profile and cluster belong together
/// @cost time and memory O(actions of the step)
[[nodiscard]] StepTimeline timeline_of(const Plan& plan, const ModelProfile& profile, const ProfiledCost& costs);

}  // namespace autopar
