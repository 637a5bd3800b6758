#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

namespace autopar::fused::pointwise {

/// A tensor of a program: its inputs come first, then the result of each step.
struct TensorIndex {
  std::int32_t at = 0;
};
using Argument = std::variant<TensorIndex, c10::IValue>;

/// A call of one of libtorch's element-wise operators.
struct Step {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;                ///< one per schema argument
  c10::ScalarType type = c10::ScalarType::Float;  ///< of the result
};

struct ProgramInput {
  c10::ScalarType type = c10::ScalarType::Float;
  bool is_full = true;  ///< has the results' sizes in the captured program; others broadcast
};

/// The program of `autopar::pointwise`: libtorch's operators in sequence, on tensors of the results' sizes.
struct Program {
  std::vector<ProgramInput> inputs;
  std::vector<Step> steps;
  std::vector<std::int32_t> results;  ///< TensorIndex; each is the result of a step

  [[nodiscard]] c10::ScalarType type_of(std::int32_t tensor) const;
};

/// Whether an argument can be written as text: none, numbers, booleans, names.
[[nodiscard]] bool has_text(const c10::IValue& argument);

/// "f32*,bf16|aten::add.Tensor(%0;%1;i1)f32|aten::silu(%2)f32|%3": inputs ('*': full), steps, results.
/// @pre has_text for all arguments
[[nodiscard]] std::string text_of(const Program& program);
/// @throws InvalidArgument if the text is no program
[[nodiscard]] Program program_of(const std::string& text);

/// Calls the operators one by one, as before they were joined: on any device, under autograd.
[[nodiscard]] std::vector<at::Tensor> run(const Program& program, at::TensorList inputs);

}  // namespace autopar::fused::pointwise
