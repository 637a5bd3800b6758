#include "torch/fused/pointwise/expression.hpp"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>

namespace autopar::fused::pointwise {

c10::ScalarType Expression::computes_in() const {
  const auto is_double = [](c10::ScalarType type) { return type == at::kDouble; };
  const bool doubles = std::ranges::any_of(inputs, is_double) || std::ranges::any_of(results, is_double, &Stored::type);
  return doubles ? at::kDouble : at::kFloat;
}

Node Builder::add(const Instruction& instruction) {
  const auto [at, is_new] = known_.try_emplace(instruction, static_cast<Node>(instructions_.size()));
  if (is_new) instructions_.push_back(instruction);
  return at->second;
}

Node Builder::make(Code code, Node a, Node b, Node c) {
  const auto number = [&](Node node) -> std::optional<double> {
    if (node == kNone || at(node).code != Code::kConstant) return std::nullopt;
    return at(node).number;
  };
  const auto left = number(a), right = number(b);
  switch (code) {
    case Code::kAdd:
      if (left && right) return constant(*left + *right);
      if (is_constant(a, 0)) return b;
      if (is_constant(b, 0)) return a;
      break;
    case Code::kSub:
      if (left && right) return constant(*left - *right);
      if (is_constant(b, 0)) return a;
      if (is_constant(a, 0)) return make(Code::kNeg, b);
      break;
    case Code::kMul:
      if (left && right) return constant(*left * *right);
      if (is_constant(a, 1)) return b;
      if (is_constant(b, 1)) return a;
      if (is_constant(a, -1)) return make(Code::kNeg, b);
      if (is_constant(b, -1)) return make(Code::kNeg, a);
      break;
    case Code::kDiv:
      if (left && right) return constant(*left / *right);
      if (is_constant(b, 1)) return a;
      break;
    case Code::kNeg:
      if (left) return constant(-*left);
      if (at(a).code == Code::kNeg) return at(a).operands[0];
      break;
    case Code::kSelect:
      if (b == c) return b;
      break;
    default:
      break;
  }
  const bool commutes = code == Code::kAdd || code == Code::kMul || code == Code::kEqual;
  if (commutes && a > b) std::swap(a, b);
  return add({code, {a, b, c}, 0});
}

namespace {

at::Tensor result_of(Code code, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  const auto truth = [&](const at::Tensor& holds) { return holds.to(a.scalar_type()); };
  switch (code) {
    case Code::kAdd:
      return a + b;
    case Code::kSub:
      return a - b;
    case Code::kMul:
      return a * b;
    case Code::kDiv:
      return a / b;
    case Code::kPow:
      return at::pow(a, b);
    case Code::kNeg:
      return -a;
    case Code::kAbs:
      return a.abs();
    case Code::kExp:
      return a.exp();
    case Code::kExpm1:
      return a.expm1();
    case Code::kLog:
      return a.log();
    case Code::kLog1p:
      return a.log1p();
    case Code::kSqrt:
      return a.sqrt();
    case Code::kRsqrt:
      return a.rsqrt();
    case Code::kTanh:
      return a.tanh();
    case Code::kErf:
      return a.erf();
    case Code::kSigmoid:
      return a.sigmoid();
    case Code::kRelu:
      return a.relu();
    case Code::kLess:
      return truth(a < b);
    case Code::kLessEqual:
      return truth(a <= b);
    case Code::kEqual:
      return truth(a == b);
    case Code::kSelect:
      return at::where(a != 0, b, c);
    case Code::kInput:
    case Code::kConstant:
      break;
  }
  return {};
}

}  // namespace

std::vector<at::Tensor> evaluate(const Expression& expression, at::TensorList inputs) {
  const auto type = expression.computes_in();
  std::vector<at::Tensor> values;
  const auto value = [&](Node node) { return node == kNone ? at::Tensor() : values[static_cast<std::size_t>(node)]; };
  for (const auto& [code, operands, number] : expression.instructions) {
    if (code == Code::kInput) {
      values.push_back(inputs[static_cast<std::size_t>(number)].to(type));
    } else if (code == Code::kConstant) {
      values.push_back(at::scalar_tensor(number, inputs.front().options().dtype(type)));
    } else {
      values.push_back(result_of(code, value(operands[0]), value(operands[1]), value(operands[2])));
    }
  }
  std::vector<std::int64_t> sizes;
  for (const auto& input : inputs) sizes = at::infer_size(sizes, input.sizes());
  std::vector<at::Tensor> results;
  for (const auto& [node, to] : expression.results) results.push_back(value(node).to(to).expand(sizes));
  return results;
}

}  // namespace autopar::fused::pointwise
