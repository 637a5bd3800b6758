#pragma once

#include <cstddef>
#include <cstdint>

namespace autopar {

/// What a search may spend, and from which size on it takes a shortcut. A budget counts states, elementary steps or
/// simulated actions, never seconds, so the same input gives the same plan on any machine. With these numbers a graph
/// of up to 1,000 operators on up to 8 devices takes about a second (`benchmarks/plan_time small`). A part whose number
/// is 0 is left out: `benchmarks/plan_ablation` shows what each of them is worth.
struct SearchBudget {
  // Branch and bound.
  std::int64_t states = 2'500'000;      ///< some tenths of a microsecond each
  std::size_t downsets = 20'000;        ///< most cuts of a graph that is searched
  std::size_t rest_cells = 250'000;     ///< of a `RestBottleneck`, 16 bytes each
  bool bounds_partial_stagings = true;  ///< off: a staging is judged when all of its stages are chosen
  std::int64_t part_of_rest = 4;        ///< all tables of the rest may take this part of the states
  int full_ranks = 8;                   ///< on n times as many ranks only 1/n of the states may be expanded
  // Stagings to start from, and local search among them.
  int starts = 24;                          ///< stagings that are improved before the branch and bound
  int estimates = 400;                      ///< most estimates to improve one of them
  std::int64_t estimate_steps = 6'000'000;  ///< elementary steps of all these estimates
  // Simulation.
  std::int64_t many_actions = 30'000;     ///< a staging with more actions is compared with one rank a position first
  std::int64_t compared_steps = 400'000;  ///< elementary steps of the comparisons of all starts
  int simulated = 6;                      ///< of the starts that were compared: most that are simulated
  int as_compared = 2;                    ///< no more are simulated once so many took as long as they compared
  // Several stages a rank, synthesised orders.
  int chunks = 4;                                  ///< most stages a position
  std::int64_t chunk_actions = 300'000;            ///< all shapes are simulated if they have no more actions together
  std::int64_t compared_chunk_actions = 300'000;   ///< else: actions of the shapes that are compared
  std::int64_t simulated_chunk_actions = 150'000;  ///< and of the best of these, which are simulated
  double chunk_slack = 1.05;                 ///< a shape that promises more than this times the best step is skipped
  int synthesised = 6;                       ///< stagings for which orders are synthesised
  std::int64_t synthesised_orders = 200;     ///< orders that are simulated to synthesise one
  std::int64_t synthesised_actions = 4'000;  ///< a staging with more actions is synthesised with one rank a position
  int synthesised_microbatches = 512;        ///< with more the bubble is below 1 %, and synthesis takes seconds
  // Tensor degrees.
  std::int64_t part_of_degrees = 8;       ///< all degrees' searches together may expand this part of the states
  std::int64_t degree_actions = 300'000;  ///< simulated while degrees of single stages, or of halves, are varied
  std::size_t varied_stagings = 4;        ///< stagings whose degrees are varied
  std::size_t halves = 4;                 ///< cuts into two stages that share all ranks in two shapes
  // From blocks back to nodes.
  std::size_t refined = 4;                ///< stagings that are improved, for each tensor degree
  double refined_slack = 1.5;             ///< one that takes more than this times the best step is left as it is
  int estimates_of_nodes = 1500;          ///< most estimates to improve one of them
  int estimates_of_pieces = 300;          ///< likewise, where pieces of blocks are moved
  std::size_t deepened = 4;               ///< pipelines that are divided into more stages a position
  std::int64_t deeper_actions = 200'000;  ///< of the comparisons of their divisions
  double deeper_gain = 0.02;      ///< part by which a division must be shorter: less is below what predictions tell
  std::size_t pieces = 640;       ///< of a graph with `many_nodes`
  std::size_t many_nodes = 4096;  ///< from here on equal nodes are evaluated once and pieces are moved
  // Least memory and remedies.
  int listed_ranks = 8;                     ///< on more ranks a few choices of replicas stand for all
  std::int64_t memory_steps = 60'000'000;   ///< of the proof of the least memory
  int memory_ranks = 64;                    ///< on more ranks it is not proven
  std::int64_t remedy_steps = 150'000'000;  ///< about ten nanoseconds each, of all trials of changes that would fit

  friend bool operator==(const SearchBudget&, const SearchBudget&) = default;
};

namespace detail {

/// Stages and numbers of replicas that are ruled out at once in the time of one state.
inline constexpr std::int64_t kLooksAState = 16;
/// Elementary steps of tables in the time of one state.
inline constexpr std::int64_t kTableStepsAState = 50;
/// States in the time of one prediction of a staging, besides two thirds of a state for each action.
inline constexpr std::int64_t kStatesAPrediction = 60;
/// Elementary steps: for each step of a proof of the least memory, for a trial that searches, and for each state of it.
inline constexpr std::int64_t kStepsAProofStep = 6, kStepsASearch = 2'000'000, kStepsAState = 100;

}  // namespace detail

}  // namespace autopar
