#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// Drops the marked ops and the computed values that nothing refers to any more, and renumbers the rest.
/// @param removed  by OpId
void compact(OpGraph& graph, const std::vector<bool>& removed);

/// Numbers values as captures do, in order of definition: leaves first, then the results of each op.
void order_values(OpGraph& graph);

/// Brings storages into the form of `reads` and `writes` of an op: valid, ascending, each once.
void sort_storages(std::vector<StorageId>& storages);

}  // namespace autopar::ir
