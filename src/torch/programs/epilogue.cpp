#include "torch/programs/epilogue.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

namespace autopar::programs {

namespace {

std::vector<ValueId> epilogue_outputs(const OpGraph& graph, const algebra::BatchSemantics& plan) {
  std::vector<ValueId> values;
  for (const auto& output : plan.outputs) {
    if (output.kind == algebra::OutputKind::kEpilogue) values.push_back(output.value);
  }
  for (const auto& update : plan.buffer_updates) {
    const auto maker = graph.value(update.result).definer;
    if (maker.valid() && plan.handling(maker).in_epilogue) values.push_back(update.result);
  }
  return values;
}

}  // namespace

Epilogue::Epilogue(const OpGraph& graph, const algebra::BatchSemantics& plan, c10::Device device)
    : graph_(graph), plan_(plan), runner_(graph, plan, plan.epilogue, epilogue_outputs(graph, plan), device) {}

EpilogueRun Epilogue::run(const std::map<ValueId, at::Tensor>& sums,
                          const std::vector<std::pair<ValueId, at::Tensor>>& prologue,
                          const interpret::SliceContext& whole, bool differentiate) {
  const at::AutoGradMode mode(differentiate);
  EpilogueRun run;
  auto values = runner_.environment();
  for (const auto& [value, tensor] : prologue) values[value.index()] = tensor;
  for (const auto& input : plan_.epilogue_inputs) {
    auto leaf = sums.at(input.value).detach();
    const bool inexact = leaf.is_floating_point() || leaf.is_complex();
    if (differentiate && graph_.value(input.value).requires_grad && inexact) leaf.set_requires_grad(true);
    values[input.value.index()] = leaf;
    run.inputs[input.value] = std::move(leaf);
  }
  std::vector<interpret::NormSample> norms(plan_.batch_norms.size());
  runner_.run(values, whole, norms);
  for (const auto value : epilogue_outputs(graph_, plan_)) run.results[value] = values[value.index()];
  return run;
}

std::map<ValueId, at::Tensor> Epilogue::gradients(const EpilogueRun& run,
                                                  const std::map<ValueId, at::Tensor>& result_gradients, bool retain) {
  std::vector<at::Tensor> roots, given, leaves;
  std::vector<ValueId> values;
  for (const auto& [value, gradient] : result_gradients) {
    const auto& result = run.results.at(value);
    if (!result.requires_grad()) continue;
    roots.push_back(result);
    given.push_back(gradient);
  }
  for (const auto& [value, leaf] : run.inputs) {
    if (!leaf.requires_grad()) continue;
    values.push_back(value);
    leaves.push_back(leaf);
  }
  std::map<ValueId, at::Tensor> out;
  if (roots.empty() || leaves.empty()) return out;
  const auto found = torch::autograd::grad(roots, leaves, given, retain, false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].defined()) out[values[i]] = found[i];
  }
  return out;
}

}  // namespace autopar::programs
