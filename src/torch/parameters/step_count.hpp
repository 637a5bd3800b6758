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

/// Evidence in a parameter's state of how often its optimizer stepped: a counter, or the version of a buffer that each
/// step writes in place.
struct StepMark {
  const void* of = nullptr;  ///< identity of the counter or buffer; null: there is no state yet
  std::int64_t number = 0;
  bool counts = false;  ///< whether it is a counter of steps
};

/// @pre the optimizer keeps state for the parameter (see `state_names`)
[[nodiscard]] StepMark step_mark(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

/// Steps between two marks of one parameter; empty if the state was replaced, or written by others.
[[nodiscard]] std::optional<std::int64_t> steps_between(const torch::optim::Optimizer& optimizer,
                                                        const StepMark& before, const StepMark& after);

/// The update of an optimizer without state: p ← p − lr (g + weight_decay p).
struct PlainUpdate {
  double lr = 0;
  double weight_decay = 0;
};

/// The update of a group of an SGD without state; empty for other optimizers, whose updates are not known.
[[nodiscard]] std::optional<PlainUpdate> plain_update(const torch::optim::Optimizer& optimizer,
                                                      const torch::optim::OptimizerOptions& options);

/// An element of a parameter before and after some steps with the same gradient.
struct UpdatedElement {
  double before = 0, after = 0, gradient = 0;
};

/// The number of such steps, at most 6, that explains all elements whose update exceeds rounding. Empty if there is no
/// such element or number.
/// @param epsilon  of the parameter's element type
[[nodiscard]] std::optional<std::int64_t> count_steps(std::span<const UpdatedElement> elements,
                                                      const PlainUpdate& update, double epsilon);

}  // namespace autopar::parameters
