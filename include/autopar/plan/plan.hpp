#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/kind.hpp>

namespace autopar {

inline constexpr int kPlanVersion = 1;

/// What bounds the step time or the choice of a plan.
enum class Binding : std::uint8_t { kCompute, kBandwidth, kBubble, kMemory };

/// One stage: a convex set of atoms, run by one rank per replica. Under some schedules a rank runs several.
struct StagePlan {
  std::vector<NodeId> atoms;           ///< of the model profile's graph, ascending
  std::vector<std::int32_t> ops;       ///< positions of their operators in the captured graph, ascending
  std::vector<Rank> ranks;             ///< [replica]
  std::vector<ParameterId> parameters; ///< read by the stage, ascending
  Bytes parameter_bytes{};             ///< buffers included
  std::int64_t parameter_elements = 0; ///< of parameters proper; 0 = not known
  Seconds forward{};                   ///< predicted, one micro-batch share
  Seconds backward{};
  Seconds communication{};             ///< predicted, one micro-batch share, both ways
  Seconds reduction{};                 ///< predicted gradient sum, once a step
  Bytes peak_memory{};                 ///< predicted, the worst rank of the stage
  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

/// A plan that was considered and is not the best, and why.
struct RunnerUp {
  std::string summary;  ///< e.g. "2 stages x 1 replica, 4 micro-batches, 1f1b"
  std::string reason;   ///< e.g. "1.32 x slower: bubble 37 %"
  Seconds step{};
  friend bool operator==(const RunnerUp&, const RunnerUp&) = default;
};

/// Everything needed to run a model on a set of ranks. A value: it prints, saves as JSON and compares.
struct Plan {
  int version = kPlanVersion;
  std::uint64_t model = 0;      ///< ModelProfile::hash it was made for
  int world = 1;                ///< ranks it was made for; some may be idle
  std::int64_t batch = 0;       ///< samples of a step it was made for, all ranks together
  std::vector<StagePlan> stages;
  int microbatches = 1;
  ScheduleKind schedule = ScheduleKind::kOneFOneB;
  std::vector<std::vector<Turn>> orders;  ///< [rank] of kSynthesised, for `microbatches`; other schedules know theirs
  std::string device;           ///< name of the device model the predictions come from
  Bytes device_memory{};        ///< what a stage may use: memory less margin
  double optimizer_state_factor = 0;
  Seconds step{};               ///< predicted step of the simulated schedule
  double bubble = 0;            ///< share of the step in which the average busy rank waits, [0, 1)
  Binding binding = Binding::kCompute;
  std::vector<RunnerUp> runners_up;  ///< best first
  std::vector<std::string> notes;    ///< what a user should know, e.g. samples per batch statistic

  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace autopar
