#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// For each storage, the last operator that writes it, which may be its creator; none if there is none.
[[nodiscard]] inline std::vector<OpId> last_writes(const OpGraph& graph) {
  std::vector<OpId> last(static_cast<std::size_t>(graph.storage_count), OpId::none());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    for (const auto storage : graph.ops[i].writes) last[storage.index()] = OpId::of(i);
  }
  return last;
}

}  // namespace autopar::ir
