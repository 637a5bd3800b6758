#include "torch/cost/held_beside.hpp"

#include <algorithm>

namespace autopar::cost {

namespace {

bool has_products(const ModelProfile& model) {
  return std::ranges::any_of(model.graph.nodes(), [&](NodeId atom) {
    return std::ranges::any_of(model.graph[atom].work,
                               [](const WorkItem& item) { return item.op_class == OpClass::kMatmul; });
  });
}

}  // namespace

Affine held_beside(const ModelProfile& model, c10::DeviceType device, bool recorded) {
  Affine bytes;
  if (device != c10::DeviceType::CUDA) return bytes;
  // libtorch allocates a cuBLAS workspace for each stream and thread (forward and backward) and keeps it: this much on
  // Hopper and later. An H100 whose steps ran on the captured stream held twice as much in addition.
  constexpr double kOfThread = 32 << 20;
  constexpr int kThreads = 2;
  const int streams = recorded ? 2 : 1;
  if (has_products(model)) bytes.fixed += kOfThread * kThreads * streams;
  if (recorded) {
    for (const auto& input : model.inputs) bytes += input.bytes;
  }
  return bytes;
}

}  // namespace autopar::cost
