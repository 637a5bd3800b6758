#pragma once

#include <string>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::tool {

enum class BarKind : std::uint8_t { kForward, kBackward, kSend, kReceive, kReduce, kUpdate };

/// One thing that a rank does, in predicted time.
struct Bar {
  BarKind kind = BarKind::kForward;
  Rank rank;
  int microbatch = -1;  ///< -1 = none
  std::string what;     ///< in words
  Seconds begin{}, end{};
};

/// The predicted course of one step of a plan.
struct StepCourse {
  std::vector<Bar> bars;      ///< rank by rank, each in the order of its program
  Seconds step{};             ///< optimizer's update included
  std::vector<Seconds> busy;  ///< [rank] computing, update included
  std::vector<int> stage;     ///< [rank], -1 = idle

  /// Share of the step in which a rank computes nothing.
  [[nodiscard]] double waiting(Rank rank) const { return step > Seconds{} ? 1 - busy[rank.index()] / step : 0; }
};

[[nodiscard]] std::string name_of(BarKind kind);

/// @throws InvalidArgument unless plan, profile and cluster belong together
[[nodiscard]] StepCourse course_of(const Plan& plan, const ModelProfile& profile, const Cluster& cluster);

}  // namespace autopar::tool
