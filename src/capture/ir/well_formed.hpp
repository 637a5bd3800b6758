#pragma once

#include <string>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// Description of the first inconsistency of the program; empty if there is none. A program is well-formed if
/// - each value is a leaf, or one result of exactly the operator that it names as its definer;
/// - operators read values of leaves and of earlier operators, and each version of a tensor follows its previous one in
///   the same storage;
/// - storages are in range, and the storages that an operator reads and writes ascend, each once;
/// - inputs, outputs, parameters and buffers are values, the first and the last two leaves of their kinds.
/// O(graph).
[[nodiscard]] std::string fault_of(const OpGraph& graph);

}  // namespace autopar::ir
