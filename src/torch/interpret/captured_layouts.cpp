#include "torch/interpret/captured_layouts.hpp"

#include <cstddef>
#include <utility>

#include "capture/ir/tensor_form.hpp"

namespace autopar::interpret {

namespace {

/// By op: whether it allocates memory of which other values are views.
std::vector<bool> makes_viewed_memory(const OpGraph& graph) {
  std::vector<int> values(static_cast<std::size_t>(graph.storage_count), 0);
  for (const auto& value : graph.values) {
    if (value.storage.valid()) ++values[value.storage.index()];
  }
  std::vector<bool> makes(graph.ops.size(), false);
  const auto creators = graph.storage_creators();
  for (std::size_t storage = 0; storage < creators.size(); ++storage) {
    if (creators[storage].valid() && values[storage] > 1) makes[creators[storage].index()] = true;
  }
  return makes;
}

}  // namespace

CapturedLayouts::CapturedLayouts(const OpGraph& graph, c10::Device device)
    : graph_(graph), concerned_(device.is_cpu() ? std::vector<bool>(graph.ops.size()) : makes_viewed_memory(graph)) {}

void CapturedLayouts::after(replay::ReplayCall& call) {
  for (const auto& output : call.node.outputs) {
    auto& result = call.stack[static_cast<std::size_t>(output.position)];
    if (output.kind == SlotKind::kList) {
      auto list = result.toTensorVector();
      for (std::size_t k = 0; k < list.size(); ++k) {
        const auto value = output.values[k];
        if (value.valid()) list[k] = ir::in_captured_layout(std::move(list[k]), graph_.value(value), call.sizes.local);
      }
      result = std::move(list);
      continue;
    }
    if (output.kind != SlotKind::kTensor || !output.values[0].valid()) continue;
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    result = ir::in_captured_layout(result.toTensor(), graph_.value(output.values[0]), call.sizes.local);
  }
}

}  // namespace autopar::interpret
