#pragma once

#include <cstddef>
#include <cstdint>

/// What searches may spend, in one place. They count states of the branch and bound (some tenths of a microsecond
/// each), or elementary steps, never seconds: the same input gives the same plan on any machine. A graph of up to 1,000
/// operators on up to 8 devices then takes less than a second (`benchmarks/plan_time small`).
namespace autopar::detail {

inline constexpr std::int64_t kSearchStates = 2'500'000;  ///< of one search for the fastest staging
inline constexpr std::size_t kSearchTails = 20'000;       ///< cuts with which graphs are searched

/// Stages and numbers of replicas that are ruled out at once in the time of a state.
inline constexpr std::int64_t kLooksAState = 16;
/// Elementary steps of tables that take as long as a state.
inline constexpr std::int64_t kTableStepsAState = 50;
/// States that predicting one staging takes as long as, beside two thirds of one for each action.
inline constexpr std::int64_t kStatesAPrediction = 60;

/// Actions of the stagings whose tensor degrees are varied, and of those with two shapes of the same ranks.
inline constexpr std::int64_t kActionsOfDegrees = 300'000;

/// Of more micro-batches no orders are synthesised where other schedules are allowed: the bubble is below a hundredth,
/// and orders of so many take seconds.
inline constexpr int kSynthesisedMicrobatches = 512;

/// Where stages may have several tensor degrees, the searches of all degrees together may spend this part of the
/// states, and the search with a degree of each stage's own as much: branches whose layers can all be sliced leave much
/// to search and little to find beside what the searches start from.
inline constexpr std::int64_t kPartOfDegrees = 8;

/// Steps of the proof of what needs the least memory.
inline constexpr std::int64_t kLeastMemorySteps = 60'000'000;
/// With more ranks it is not proven.
inline constexpr int kLeastMemoryRanks = 64;
/// Elementary steps, about ten nanoseconds each, of all trials of changes that would make a refused request fit.
inline constexpr std::int64_t kRemedySteps = 150'000'000;
/// Of each step of such a proof, of a trial that searches, and of each state of its search.
inline constexpr std::int64_t kStepsAProofStep = 6, kStepsASearch = 2'000'000, kStepsAState = 100;

}  // namespace autopar::detail
