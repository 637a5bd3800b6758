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
  std::array<Node, 3> operands{kNone, kNone, kNone};  ///< earlier instructions
  double number = 0;

  friend auto operator<=>(const Instruction&, const Instruction&) = default;
};

/// A value, and the type in which a tensor stores it.
struct Stored {
  Node node = kNone;
  c10::ScalarType type = c10::ScalarType::Float;
};

/// Numbers computed from the elements at one place of several tensors. Only tensors have types. Values between them are
/// in single precision, or in double if a tensor is, and are rounded when stored.
struct Expression {
  std::vector<c10::ScalarType> inputs;
  std::vector<Instruction> instructions;
  std::vector<Stored> results;
  std::vector<Stored> steps{};  ///< intermediate results of the operators, which may be kept for the backward

  /// Float or Double.
  [[nodiscard]] c10::ScalarType computes_in() const;
};

/// Makes instructions without duplicates, and simplifies those with constants.
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

/// The expression's results by libtorch's operators, one for each instruction: the reference for kernels. On any
/// device, and under autograd. @param inputs  broadcast to the results' sizes
[[nodiscard]] std::vector<at::Tensor> evaluate(const Expression& expression, at::TensorList inputs);

}  // namespace autopar::fused::pointwise
