#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// By ValueId: whether a backward from `roots` gives the value a gradient.
[[nodiscard]] std::vector<bool> reached_values(const OpGraph& graph, const std::vector<ValueId>& roots);

}  // namespace autopar::ir
