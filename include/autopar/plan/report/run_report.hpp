#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <autopar/plan/report/advice.hpp>
#include <autopar/plan/report/memory_over_step.hpp>
#include <autopar/plan/report/step_timeline.hpp>

namespace autopar {

/// One atom of the model as a report shows it.
struct ReportedAtom {
  std::string path;  ///< modules from the outside in, joined by '.'; may be empty
  std::string name;  ///< of its first operator
  int stage = 0;
  std::int64_t operators = 1;
  Bytes parameters{};  ///< that it reads; of several readers the first counts them
  Seconds seconds{};   ///< predicted: forwards and backwards of one step on one rank of its stage
  bool recomputed = false;
};

/// What a rank measured while it trained.
struct MeasuredRun {
  Rank rank{0};
  std::int64_t steps = 0;  ///< training steps so far
  Seconds step{};          ///< median from one call to the next, optimizer and data included; 0 = unknown
  Seconds call{};          ///< median of calls alone; 0 = unknown: a GPU works on after them
  Bytes peak_memory{};     ///< of the device's allocator; 0 = unknown
  std::vector<Bar> bars;   ///< of one step; empty = not recorded. Other ranks' may be among them
};

/// A number that was predicted and measured.
struct Comparison {
  std::string what;
  std::string predicted, measured;  ///< with units
  double error = 0;                 ///< measured / predicted - 1
};

/// Everything that a report of a plan says, as values: `io/report_page` draws it.
struct RunReport {
  Plan plan;
  std::vector<ReportedAtom> atoms;         ///< in the order of the captured graph
  StepTimeline timeline;                   ///< predicted; `step` is 0 if it is unknown
  std::vector<RankMemoryOverStep> memory;  ///< see `memory_over_step`
  std::vector<Advice> advice;
  std::optional<MeasuredRun> measured;
  std::vector<Comparison> comparisons;  ///< of what was measured: steps, calls, memory, kinds of actions by stage
  std::vector<std::string> notes;       ///< what this report leaves out, and why
};

/// The report of a plan.
/// @param costs    null: they are unknown, and so is everything that takes time
/// @param modules  by operator of the captured graph, as `module_paths` gives them; empty: the profile's paths
/// @throws InvalidArgument unless plan and profile belong together
/// @cost a few simulations of the plan
[[nodiscard]] RunReport make_run_report(Plan plan, const ModelProfile& profile, const ProfiledCost* costs,
                                        const std::vector<std::string>& modules = {});

/// The report of a plan of which nothing else is at hand: no model, nothing that takes time.
[[nodiscard]] RunReport plan_alone(Plan plan);

/// Puts what was measured beside what was predicted, in place of what was measured before.
void set_measured(RunReport& report, MeasuredRun run);

}  // namespace autopar
