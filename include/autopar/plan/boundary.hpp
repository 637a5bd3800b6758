#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <autopar/plan/memory.hpp>
#include <autopar/plan/workload.hpp>

namespace autopar::detail {

/// What flows over the borders of one stage, each value once a side. A value that two stages read is held for each of
/// them, so this is never more than what `predict_memory` counts.
struct Boundary {
  Affine in, out, gradients;  ///< values read and made, gradients both ways

  /// As `add_boundary` counts them, of one share.
  [[nodiscard]] std::int64_t bytes(std::int64_t share, int in_flight, int microbatches) const {
    return bytes_at(out, share).value() * std::min(microbatches, in_flight) +
           bytes_at(in, share).value() * std::min(microbatches, in_flight + 1) +
           bytes_at(gradients, share).value() * std::min(microbatches, 2);
  }
};

/// @param inside  inside(NodeId): whether the node belongs to the stage
template <class Inside>
[[nodiscard]] Boundary boundary_of(const Workload& work, const Inside& inside) {
  Boundary boundary;
  std::vector<std::int32_t> seen;
  const auto add = [&](Affine& side, std::int32_t value, const Affine& bytes, bool differentiable) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) return;
    seen.push_back(value);
    side += bytes;
    if (differentiable) boundary.gradients += bytes;
  };
  for (const auto& input : work.inputs) {
    if (std::ranges::any_of(input.readers, inside)) add(boundary.in, input.value, input.bytes, input.differentiable);
  }
  for (const EdgeId edge : work.graph.edges()) {
    const bool from = inside(work.graph.source(edge)), to = inside(work.graph.target(edge));
    const ValueProfile& value = work.graph[edge];
    if (from != to) add(from ? boundary.out : boundary.in, value.value, value.bytes, value.differentiable);
  }
  for (const auto& output : work.outputs) {
    if (output.bytes.per_sample != 0 && inside(output.writer))
      add(boundary.out, output.value, output.bytes, !work.loss_mode);
  }
  return boundary;
}

}  // namespace autopar::detail
