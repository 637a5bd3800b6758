#include "capture/trace/exact_batch_norm.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace autopar::trace {
namespace {

at::Tensor all_reduce(const at::Tensor& addend) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("autopar::all_reduce", "").typed<at::Tensor(const at::Tensor&)>();
  return op.call(addend);
}

struct BatchNormCall {
  at::Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0, eps = 0;
};

BatchNormCall take_arguments(torch::jit::Stack* stack) {
  const auto base = stack->size() - 9;
  const auto tensor = [&](std::size_t i) {
    const auto& value = (*stack)[base + i];
    return value.isTensor() ? value.toTensor() : at::Tensor();
  };
  BatchNormCall call{tensor(0), tensor(1), tensor(2), tensor(3), tensor(4)};
  call.momentum = (*stack)[base + 6].toDouble();
  call.eps = (*stack)[base + 7].toDouble();
  stack->resize(base);
  return call;
}

void follow(const at::Tensor& running, const at::Tensor& statistic, double momentum) {
  if (!running.defined()) return;
  running.copy_(running * (1 - momentum) +
                statistic.detach().reshape(running.sizes()).to(running.scalar_type()) * momentum);
}

}  // namespace

bool is_training_batch_norm(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::batch_norm") return false;
  const auto base = stack.size() - 9;
  return stack[base + 5].toBool() && stack[base].toTensor().dim() >= 2;
}

void exact_batch_norm(torch::jit::Stack* stack) {
  const auto call = take_arguments(stack);
  const auto& input = call.input;
  std::vector<std::int64_t> others, row(static_cast<std::size_t>(input.dim()), 1);
  for (std::int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) others.push_back(d);
  }
  row[1] = input.size(1);
  const auto count = input.numel() / std::max<std::int64_t>(input.size(1), 1);
  const auto wide = input.to(at::toOpMathType(input.scalar_type()));
  const auto mean = all_reduce(wide.sum(others, true).div(count));
  const auto centred = wide - mean;
  const auto variance = all_reduce((centred * centred).sum(others, true).div(count));
  auto result = centred * (variance + call.eps).rsqrt();
  if (call.weight.defined()) result = result * call.weight.reshape(row);
  if (call.bias.defined()) result = result + call.bias.reshape(row);
  result = result.to(input.scalar_type());
  {
    const at::NoGradGuard no_grad;
    follow(call.running_mean, mean, call.momentum);
    if (call.running_var.defined()) follow(call.running_var, variance.mul(count).div(count - 1), call.momentum);
  }
  stack->emplace_back(std::move(result));
}

}  // namespace autopar::trace
