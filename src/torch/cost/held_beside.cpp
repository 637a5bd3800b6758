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
  // libtorch gives cuBLAS memory for each stream and thread, of forwards and of backwards, and keeps it: so much on
  // Hopper and later. Where an H100 ran on the stream that is recorded, it held twice as much more.
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
