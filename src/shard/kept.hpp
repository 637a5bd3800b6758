#pragma once

#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <autopar/core/error.hpp>

namespace autopar::detail {

template <class Value>
struct Kept : torch::CustomClassHolder {
  explicit Kept(Value of) : value(std::move(of)) {}
  Value value;
};

/// For the backward of an autograd function: its context has room for tensors and numbers only.
template <class Value>
void keep(torch::autograd::AutogradContext& context, Value value) {
  context.saved_data["kept"] = at::IValue::make_capsule(c10::make_intrusive<Kept<Value>>(std::move(value)));
}

template <class Value>
[[nodiscard]] Value& kept(torch::autograd::AutogradContext& context) {
  return static_cast<Kept<Value>&>(*context.saved_data.at("kept").toCapsule()).value;
}

/// A gradient that ranks compute together has no graph of its own: using it as if it had would be silently wrong.
inline void refuse_double_backward(const char* name) {
  if (!at::GradMode::is_enabled()) return;
  throw InvalidArgument(std::string(name) + ": its gradient cannot be differentiated; do not pass create_graph");
}

}  // namespace autopar::detail
