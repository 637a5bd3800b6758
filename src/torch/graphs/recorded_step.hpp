#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "torch/graphs/recorded_work.hpp"
#include "torch/interpret/recorded_seeds.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/steps/step_call.hpp"

namespace autopar::graphs {

/// What a step reads beside its inputs, and how: as long as it is the same, so is the work.
struct StepConditions {
  std::vector<const void*> memory;    ///< of parameters, buffers, their copies and the loss's gradient
  std::vector<std::int64_t> strides;  ///< of parameters and buffers, which may lie otherwise in the same memory
  std::vector<bool> settings;         ///< requires_grad of parameters, and libtorch's

  friend bool operator==(const StepConditions&, const StepConditions&) = default;
};

/// A step of calls that repeat. With a single loss `forward` makes the gradients, too; else `backward` makes them, from
/// those of the results, and reads what `forward` left in its memory.
struct RecordedStep {
  std::weak_ptr<programs::CapturedProgram> program;
  StepConditions conditions;
  RecordedWork forward;
  std::shared_ptr<interpret::RecordedSeeds> seeds;  ///< of its draws; null: none
  std::optional<RecordedWork> backward{};
  bool shares_memory = true;                ///< what `backward` makes may lie in memory that `forward` writes
  std::vector<bool> given{};                ///< which results have gradients in `backward`, on this rank
  std::weak_ptr<const steps::Call> last{};  ///< whose backward may still come

  /// Whether what a forward makes would be written over what users hold, or a backward still needs.
  [[nodiscard]] bool is_free() const {
    return last.expired() && forward.is_free() && (!backward || !shares_memory || backward->is_free());
  }
};

}  // namespace autopar::graphs
