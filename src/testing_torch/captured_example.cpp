#include "testing_torch/captured_example.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <torch/nn/module.h>

#include <autopar/core/error.hpp>

#include "capture/trace/capture.hpp"
#include "ops/registry.hpp"

namespace autopar::testing::op_laws {

namespace {

at::Tensor leaf_of(const at::Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(tensor.is_floating_point());
}

std::string forms_of(const Tensors& tensors) {
  std::string text;
  for (const auto& tensor : tensors) text += (text.empty() ? "" : ", ") + form_of(tensor);
  return text.empty() ? "none" : text;
}

}  // namespace

Tensors Arguments::differentiable() const {
  Tensors found;
  for (const auto* tensors : {&samples, &shared})
    std::ranges::copy_if(*tensors, std::back_inserter(found), [](const auto& x) { return x.requires_grad(); });
  return found;
}

std::vector<std::string> Arguments::names() const {
  std::vector<std::string> names;
  const auto add = [&](const char* name, const Tensors& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].requires_grad()) names.push_back(name + ("[" + std::to_string(i) + "]"));
    }
  };
  add("samples", samples);
  add("shared", shared);
  return names;
}

Arguments Arguments::slice(std::int64_t first, std::int64_t count) const {
  Arguments some{{}, shared};
  for (const auto& tensor : samples) some.samples.push_back(tensor.narrow(0, first, count));
  return some;
}

CapturedExample::CapturedExample(std::string_view op, const OpExample& example) : op_(op), example_(example) {
  check_arguments();
  batch_ = example.samples.front().size(0);
  capture_call();
  find_calls();
  plan_ = algebra::analyze_batch(graph_);
  refuse_draws();
}

void CapturedExample::check_arguments() const {
  const auto refuse = [&](const std::string& why) { throw InvalidArgument("check_op_laws(\"" + op_ + "\"): " + why); };
  if (!example_.call) refuse("the example has no call");
  if (example_.samples.empty())
    refuse("the example has no samples; give at least one tensor with the samples in dim 0");
  for (const auto* tensors : {&example_.samples, &example_.shared}) {
    for (const auto& tensor : *tensors) {
      const bool fits = tensor.defined() && tensor.device().is_cpu() &&
                        (tensor.scalar_type() == at::kDouble || at::isIntegralType(tensor.scalar_type(), true));
      if (!fits) refuse("one of its tensors is " + form_of(tensor) + "; give float64 or integers on the CPU");
    }
  }
  constexpr std::int64_t kLeast = 5;
  for (const auto& tensor : example_.samples) {
    const auto samples = tensor.dim() > 0 ? tensor.size(0) : 0;
    if (samples < kLeast) refuse("samples of " + form_of(tensor) + "; give at least 5, in dim 0");
    if (samples != example_.samples.front().size(0))
      refuse("samples of " + forms_of(example_.samples) + "; give as many in each tensor");
  }
}

void CapturedExample::capture_call() {
  const auto leaves = arguments(batch_);
  torch::nn::Module parameters("example");
  std::vector<trace::InputSpec> specs;
  for (const auto& tensor : leaves.samples) specs.push_back(trace::input_spec(tensor));
  for (std::size_t i = 0; i < leaves.shared.size(); ++i) {
    const auto& tensor = leaves.shared[i];
    if (tensor.requires_grad()) {
      const auto name = "shared" + std::to_string(i);
      parameters.register_parameter(name, tensor);
      parameters_[name] = i;
    } else {
      specs.push_back(trace::input_spec(tensor, std::nullopt));
    }
  }
  const auto forward = [&](const Tensors& inputs) {
    auto next = inputs.begin() + static_cast<std::ptrdiff_t>(leaves.samples.size());
    Arguments given{{inputs.begin(), next}, leaves.shared};
    for (auto& tensor : given.shared) {
      if (!tensor.requires_grad()) tensor = *next++;
    }
    return call(given);
  };
  graph_ = trace::capture(parameters, specs, forward);
  trace::verify_capture(graph_, parameters, specs, forward, std::array{batch_ - 2, batch_});
}

void CapturedExample::find_calls() {
  std::set<std::string> others;
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    const auto id = OpId::of(i);
    if (graph_.is(id, op_))
      calls_.push_back(id);
    else
      others.insert(graph_.name(id));
  }
  const bool is_known = ops::definition_of(op_).is_known();
  if (calls_.empty()) {
    std::string captured;
    for (const auto& name : others) captured += (captured.empty() ? "" : ", ") + name;
    throw InvalidArgument("check_op_laws(\"" + op_ + "\"): the example does not call it; captured were " +
                          (captured.empty() ? "no operators" : captured) +
                          (is_known ? "" : ". It has no definition: one that is made of others is captured as these"));
  }
  if (!is_known) {
    throw InvalidArgument("check_op_laws(\"" + op_ +
                          "\"): it has no definition; call ap::register_op before the first capture");
  }
}

void CapturedExample::refuse_draws() const {
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (plan_.ops[i].draw == Draw::kNone) continue;
    throw InvalidArgument("check_op_laws(\"" + op_ + "\"): " + graph_.describe(OpId::of(i)) +
                          " draws random numbers, of which slices have others than the whole batch; call it with "
                          "arguments that draw none");
  }
}

Arguments CapturedExample::arguments(std::int64_t samples) const {
  Arguments made;
  for (const auto& tensor : example_.samples) made.samples.push_back(leaf_of(tensor.narrow(0, 0, samples)));
  for (const auto& tensor : example_.shared) made.shared.push_back(leaf_of(tensor));
  return made;
}

replay::Environment CapturedExample::environment(const Arguments& arguments) const {
  replay::Environment values(graph_.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = graph_.values[i].constant;
  for (const auto& [name, value] : graph_.parameters) values[value.index()] = arguments.shared[parameters_.at(name)];
  auto next = graph_.inputs.begin();
  for (const auto& tensor : arguments.samples) values[(next++)->index()] = tensor;
  for (const auto& tensor : arguments.shared) {
    if (!tensor.requires_grad()) values[(next++)->index()] = tensor;
  }
  return values;
}

bool CapturedExample::is_shared(ValueId value) const {
  const auto& info = graph_.value(value);
  if (info.kind == ValueKind::kInput) return static_cast<std::size_t>(info.position) >= example_.samples.size();
  return info.is_leaf();
}

std::string CapturedExample::name_of(OpId call, ValueId operand) const {
  const auto& node = graph_.op(call);
  for (const auto& slot : node.inputs) {
    const auto& name = node.op.schema().arguments()[static_cast<std::size_t>(slot.position)].name();
    const auto found = std::ranges::find(slot.values, operand);
    if (found == slot.values.end()) continue;
    return slot.kind == SlotKind::kTensor ? name : name + "[" + std::to_string(found - slot.values.begin()) + "]";
  }
  return "?";
}

void CapturedExample::broken(const std::string& law, const std::string& given) const {
  throw LawBroken(law, /*seed=*/0, described(), op_ + ": " + given);
}

std::string CapturedExample::described() const {
  return op_ + ", samples " + forms_of(example_.samples) + "; shared " + forms_of(example_.shared);
}

}  // namespace autopar::testing::op_laws
