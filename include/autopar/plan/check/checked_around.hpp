#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <autopar/plan/check/stated_plan.hpp>

namespace autopar::detail {

[[nodiscard]] inline std::int64_t checked_bytes(const Affine& size, std::int64_t samples) {
  return static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples)))));
}

/// Bytes around a segment that is recomputed, beside what its atoms rebuild.
struct CheckedAround {
  /// From its forward on: what enters it from its stage, unless kept there, and what it keeps for others.
  std::int64_t kept = 0;
  std::int64_t let_go = 0;     ///< of that, what only its stage has read: freed when its backward comes
  std::int64_t gradients = 0;  ///< of what its stage reads of it; there while it is rebuilt
  /// By atom whose result has two gradients, from two readers outside: what it takes less, as it receives their sum.
  std::map<NodeId, std::int64_t> summed;
  std::map<NodeId, std::int64_t> until_rebuilt;  ///< by atom: what it keeps for readers outside only
};

/// @param slice  samples
[[nodiscard]] inline CheckedAround checked_around(const StatedPlan& stated, int stage,
                                                  const std::vector<NodeId>& segment, std::int64_t slice) {
  const auto& graph = stated.model().graph;
  const std::set<NodeId> inside(segment.begin(), segment.end());
  CheckedAround out;
  std::set<std::int32_t> goes_on, entering, leaving, answered, read_outside;  // values
  const auto leaves = [&](std::int32_t value, std::int64_t bytes) {
    if (!leaving.insert(value).second) return;
    out.kept += bytes;
    if (!goes_on.contains(value)) out.let_go += bytes;
  };
  for (const NodeId atom : segment) {
    for (const EdgeId edge : graph.out_edges(atom)) {
      if (stated.stage_of(graph.target(edge)) != stage) goes_on.insert(graph[edge].value);
    }
  }
  for (const auto& output : stated.model().outputs) {
    if (!inside.contains(output.writer)) continue;
    goes_on.insert(output.value);
    if (output.kept) leaves(output.value, checked_bytes(output.bytes, slice));
  }
  for (const NodeId atom : segment) {
    for (const EdgeId edge : graph.in_edges(atom)) {
      const NodeId source = graph.source(edge);
      if (stated.stage_of(source) != stage || inside.contains(source) || graph[edge].kept) continue;
      if (entering.insert(graph[edge].value).second) out.kept += checked_bytes(graph[edge].bytes, slice);
    }
    for (const EdgeId edge : graph.out_edges(atom)) {
      const auto& value = graph[edge];
      if (inside.contains(graph.target(edge))) continue;
      const std::int64_t bytes = checked_bytes(value.bytes, slice);
      const bool is_read_inside = std::ranges::any_of(graph.out_edges(atom), [&](EdgeId other) {
        return graph[other].value == value.value && inside.contains(graph.target(other));
      });
      const bool is_whole = stated.slices_of(atom) == nullptr;
      if (is_whole && !is_read_inside && read_outside.insert(value.value).second) {
        if (value.two_gradients) out.summed[atom] += bytes;
        if (value.kept && value.for_readers) out.until_rebuilt[atom] += bytes;
      }
      if (value.kept) leaves(value.value, bytes);
      const bool is_answered = value.differentiable && stated.stage_of(graph.target(edge)) == stage;
      if (is_answered && answered.insert(value.value).second) out.gradients += bytes;
    }
  }
  return out;
}

}  // namespace autopar::detail
