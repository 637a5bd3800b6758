#pragma once

#include <string>
#include <vector>

#include <autopar/plan/options.hpp>

/// The plans that are forced on each model.
namespace cases {

struct Case {
  const char* name;
  int stages = 1;
  int replicas = 1;
  int microbatches = 1;
  autopar::ScheduleKind schedule = autopar::ScheduleKind::kOneFOneB;
  double first_share = 0;  ///< of the work, that the first of two stages gets; 0 = the planner cuts
};

inline const std::vector<Case> kCases{
    {.name = "1 stage x 1, m1"},
    {.name = "1 stage x 2, m1", .replicas = 2},
    {.name = "1 stage x 2, m4", .replicas = 2, .microbatches = 4},
    {.name = "2 stages, m1", .stages = 2},
    {.name = "2 stages, m2", .stages = 2, .microbatches = 2},
    {.name = "2 stages, m4", .stages = 2, .microbatches = 4},
    {.name = "2 stages, m8", .stages = 2, .microbatches = 8},
    {.name = "2 stages, m4, gpipe", .stages = 2, .microbatches = 4, .schedule = autopar::ScheduleKind::kGPipe},
    {.name = "2 stages, m4, cut at 1/4", .stages = 2, .microbatches = 4, .first_share = 0.25},
};
inline const std::vector<std::string> kModels{"mlp", "resnet", "transformer"};

[[nodiscard]] inline autopar::Options options_of(const Case& wanted, const std::string& cost_file) {
  autopar::Options options;
  options.stages = wanted.stages;
  options.replicas = {wanted.replicas};
  options.microbatches = wanted.microbatches;
  options.schedule = wanted.schedule;
  options.costs = autopar::CostChoice::kProfiled;
  options.cost_file = cost_file;
  return options;
}

}  // namespace cases
