#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace autopar::parameters {

/// What a parameter's state says of how often its optimizer stepped it: a counter, or the version of a buffer that each
/// step writes in place.
struct StepMark {
  const void* of = nullptr;  ///< whose number it is; null: there is no state yet
  std::int64_t number = 0;
  bool counts = false;  ///< a counter of steps
};

/// @pre the optimizer keeps state for the parameter (see `state_names`)
[[nodiscard]] StepMark step_mark(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

/// Steps between two marks of one parameter; nothing where the state was replaced, or written by others.
[[nodiscard]] std::optional<std::int64_t> steps_between(const torch::optim::Optimizer& optimizer,
                                                        const StepMark& before, const StepMark& after);

/// What a step of an optimizer without state does: p ← p − lr (g + weight_decay p).
struct PlainUpdate {
  double lr = 0;
  double weight_decay = 0;
};

/// Of a group of an SGD that keeps no state; nothing for other optimizers, whose updates are not known.
[[nodiscard]] std::optional<PlainUpdate> plain_update(const torch::optim::Optimizer& optimizer,
                                                      const torch::optim::OptimizerOptions& options);

/// An element of a parameter before and after some steps with one gradient.
struct UpdatedElement {
  double before = 0, after = 0, gradient = 0;
};

/// How many such steps lead from before to after in all elements whose update is larger than rounding, 6 at most;
/// nothing if there is no such element or number.
/// @param epsilon  of the parameter's element type
[[nodiscard]] std::optional<std::int64_t> count_steps(std::span<const UpdatedElement> elements,
                                                      const PlainUpdate& update, double epsilon);

}  // namespace autopar::parameters
