#pragma once

#include <vector>

#include <autopar/torch/op_graph.hpp>

namespace autopar::detail {

/// Drops the marked ops and the computed values that nothing names any more, and renumbers the rest.
/// @param removed  by OpId
void compact(OpGraph& graph, const std::vector<bool>& removed);

}  // namespace autopar::detail
