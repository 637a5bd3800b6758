#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::tool {

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

/// Whether a rank can do nothing else of its kind meanwhile, as opposed to what travels beside it.
[[nodiscard]] constexpr bool computes(BarKind kind) {
  return kind != BarKind::kSend && kind != BarKind::kReceive && kind != BarKind::kCollective;
}

/// One thing that a rank does, in predicted time.
struct Bar {
  BarKind kind = BarKind::kForward;
  Rank rank;
  int microbatch = -1;  ///< -1 = none
  std::string what;     ///< in words
  Seconds begin{}, end{};
};

/// The predicted timeline of one step of a plan.
struct StepTimeline {
  std::vector<Bar> bars;                 ///< rank by rank, each in the order of its program
  Seconds step{};                        ///< optimizer's update included
  std::vector<Seconds> busy;             ///< [rank] computing, update included
  std::vector<std::vector<int>> stages;  ///< [rank] that it runs, ascending; none = idle

  /// Share of the step in which a rank computes nothing.
  [[nodiscard]] double waiting(Rank rank) const { return step > Seconds{} ? 1 - busy[rank.index()] / step : 0; }
};

[[nodiscard]] std::string name_of(BarKind kind);
/// "stage 1", "stages 0, 5" or "idle".
[[nodiscard]] std::string stages_of(const StepTimeline& timeline, Rank rank);

/// @throws InvalidArgument unless plan, profile and cluster belong together
[[nodiscard]] StepTimeline timeline_of(const Plan& plan, const ModelProfile& profile, const ProfiledCost& costs);

}  // namespace autopar::tool
