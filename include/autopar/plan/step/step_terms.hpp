#pragma once

#include <vector>

#include <autopar/plan/memory/memory.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// What a stage contributes to a step.
struct StageTerms {
  Seconds forward{};  ///< of the largest slice of a micro-batch
  Seconds backward{};
  Seconds communication{};  ///< messages of one micro-batch, both ways, on the rank that has most
  Seconds reduction{};      ///< its gradient sums, one after the other
  Seconds update{};  ///< optimizer step, including copies to and from the host; under ZeRO 1 and 2 also the all-gather
                     ///< of updated parameters
  StageMemory memory;
};

/// Predicted step of one staging, with the terms that explain it.
struct StepTerms {
  Seconds step{};
  double bubble = 0;    ///< share of the step in which the average rank in use does not compute
  Seconds computing{};  ///< of the busiest rank, update included
  Seconds summing{};    ///< gradient sums of the rank that has the most
  std::vector<StageTerms> stages;
  std::vector<Mesh> meshes;                        ///< by stage
  std::vector<std::vector<ComputeAction>> orders;  ///< [rank] of a synthesised schedule
  bool host_holds = true;                          ///< what is offloaded
  MemoryOptimizations optimizations;               ///< with which it was predicted
};

}  // namespace autopar
