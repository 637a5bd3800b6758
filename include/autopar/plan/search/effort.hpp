#pragma once

#include <cstddef>
#include <cstdint>

/// What searches may spend, in one place. They count states of the branch and bound (some tenths of a microsecond
/// each), or elementary steps, never seconds. So the same input gives the same plan on any machine. A graph of up to
/// 1,000 operators on up to 8 devices takes less than a second (`benchmarks/plan_time small`).
namespace autopar::detail {

inline constexpr std::int64_t kSearchStates = 2'500'000;  ///< of one search for the fastest staging
inline constexpr std::size_t kSearchTails = 20'000;       ///< most cuts of a graph that is searched

/// Stages and numbers of replicas that are ruled out at once in the time of one state.
inline constexpr std::int64_t kLooksAState = 16;
/// Elementary steps of tables in the time of one state.
inline constexpr std::int64_t kTableStepsAState = 50;
/// States in the time of one prediction of a staging, besides two thirds of a state for each action.
inline constexpr std::int64_t kStatesAPrediction = 60;

/// Actions spent on varying tensor degrees, and on two shapes of the same ranks.
inline constexpr std::int64_t kActionsOfDegrees = 300'000;

/// With more micro-batches no orders are synthesised if other schedules are allowed. The bubble is then below 1 %, and
/// synthesis takes seconds.
inline constexpr int kSynthesisedMicrobatches = 512;

/// If stages may have several tensor degrees, the searches of all degrees together may spend one part in so many of the
/// states. The search in which each stage has its own degree may spend as much.
inline constexpr std::int64_t kPartOfDegrees = 8;

/// Steps of the proof of the least memory.
inline constexpr std::int64_t kLeastMemorySteps = 60'000'000;
/// With more ranks the least memory is not proven.
inline constexpr int kLeastMemoryRanks = 64;
/// Elementary steps, about ten nanoseconds each, of all trials of changes that would make a refused request fit.
inline constexpr std::int64_t kRemedySteps = 150'000'000;
/// Elementary steps: for each step of such a proof, for a trial that searches, and for each state of its search.
inline constexpr std::int64_t kStepsAProofStep = 6, kStepsASearch = 2'000'000, kStepsAState = 100;

}  // namespace autopar::detail
