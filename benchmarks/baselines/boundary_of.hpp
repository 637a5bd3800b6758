#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <autopar/plan/memory/boundary_masks.hpp>

namespace autopar::detail {

/// What crosses the borders of a stage, with the values that it makes.
struct BoundaryOfRun : Boundary {
  Affine out;
};

/// What crosses the borders of a stage, from the edges one by one.
/// @param inside  inside(NodeId): whether the node belongs to the stage
template <class Inside>
[[nodiscard]] BoundaryOfRun boundary_of(const Workload& work, const Inside& inside) {
  BoundaryOfRun boundary;
  std::vector<std::int32_t> seen;
  const auto is_new = [&](std::int32_t value) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) return false;
    seen.push_back(value);
    return true;
  };
  const auto add_read = [&](const auto& value) {
    if (!is_new(value.value)) return;
    boundary.in += value.bytes;
    if (value.differentiable) boundary.going += value.bytes;
  };
  const auto add_made = [&](const auto& value, bool differentiable) {
    if (!is_new(value.value)) return;
    boundary.out += value.bytes;
    if (!value.kept) boundary.held += value.bytes;
    if (differentiable) boundary.arriving += value.bytes;
  };
  for (const auto& input : work.inputs) {
    if (std::ranges::any_of(input.readers, inside)) add_read(input);
  }
  for (const EdgeId edge : work.graph.edges()) {
    const bool from = inside(work.graph.source(edge)), to = inside(work.graph.target(edge));
    const ValueProfile& value = work.graph[edge];
    if (from && !to) add_made(value, value.differentiable);
    if (to && !from) add_read(value);
  }
  for (const auto& output : work.outputs) {
    if (output.bytes.per_sample != 0 && inside(output.writer)) add_made(output, !work.loss_mode);
  }
  return boundary;
}

}  // namespace autopar::detail
