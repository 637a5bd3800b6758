#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <autopar/capture/pointwise_formula.hpp>

namespace autopar::fused::pointwise {

using Code = PointwiseCode;
using Node = PointwiseFormula::Term;  ///< index of an instruction
constexpr Node kNone = PointwiseFormula::kNone;

struct Instruction {
  Code code = Code::kConstant;
  std::array<Node, 3> operands{kNone, kNone, kNone};  ///< of instructions before
  double number = 0;

  friend auto operator<=>(const Instruction&, const Instruction&) = default;
};

/// A value as tensors hold it.
struct Stored {
  Node node = kNone;
  c10::ScalarType type = c10::ScalarType::Float;
};

/// Numbers made of the elements at one place of several tensors. Only tensors have types: between them values are
/// single precision, or double where a tensor is, and are rounded where they are stored.
struct Expression {
  std::vector<c10::ScalarType> inputs;
  std::vector<Instruction> instructions;
  std::vector<Stored> results;
  std::vector<Stored> steps{};  ///< values that the operators had stored between them: what may be kept

  /// Float or Double.
  [[nodiscard]] c10::ScalarType computes_in() const;
};

/// Makes instructions, each once; simplifies what constants allow.
class Builder {
 public:
  [[nodiscard]] Node input(std::int32_t index) { return add({Code::kInput, {kNone, kNone, kNone}, double(index)}); }
  [[nodiscard]] Node constant(double number) { return add({Code::kConstant, {kNone, kNone, kNone}, number}); }
  [[nodiscard]] Node make(Code code, Node a, Node b = kNone, Node c = kNone);

  [[nodiscard]] const std::vector<Instruction>& instructions() const { return instructions_; }
  [[nodiscard]] const Instruction& at(Node node) const { return instructions_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] bool is_constant(Node node, double number) const {
    return node != kNone && at(node).code == Code::kConstant && at(node).number == number;
  }

 private:
  [[nodiscard]] Node add(const Instruction& instruction);

  std::vector<Instruction> instructions_;
  std::map<Instruction, Node> known_;
};

/// Its results by libtorch's operators, one for each instruction: what kernels are held to. On any device, and under
/// autograd. @param inputs  that broadcast to the results' sizes
[[nodiscard]] std::vector<at::Tensor> evaluate(const Expression& expression, at::TensorList inputs);

}  // namespace autopar::fused::pointwise
