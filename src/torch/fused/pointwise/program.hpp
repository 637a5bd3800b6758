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

/// A call of one of libtorch's operators that treat each element by itself.
struct Step {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;                ///< one per schema argument
  c10::ScalarType type = c10::ScalarType::Float;  ///< of the result
};

struct ProgramInput {
  c10::ScalarType type = c10::ScalarType::Float;
  bool is_full = true;  ///< of the results' sizes, where it was captured; others broadcast
};

/// What `autopar::pointwise` computes: libtorch's operators, one after the other, on tensors of the results' sizes.
struct Program {
  std::vector<ProgramInput> inputs;
  std::vector<Step> steps;
  std::vector<std::int32_t> results;  ///< TensorIndex, each of a step

  [[nodiscard]] c10::ScalarType type_of(std::int32_t tensor) const;
};

/// Whether an argument has a text: none, numbers, truth values, names.
[[nodiscard]] bool has_text(const c10::IValue& argument);

/// "f32*,bf16|aten::add.Tensor(%0;%1;i1)f32|aten::silu(%2)f32|%3": inputs ('*': full), steps, results.
/// @pre has_text of all arguments
[[nodiscard]] std::string text_of(const Program& program);
/// @throws InvalidArgument if it is none
[[nodiscard]] Program program_of(const std::string& text);

/// Calls the operators, as a program that was not joined does: on any device, under autograd.
[[nodiscard]] std::vector<at::Tensor> run(const Program& program, at::TensorList inputs);

}  // namespace autopar::fused::pointwise
