#pragma once

#include <string>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// What of the program contradicts itself, in words; empty if nothing does. A program is well-formed if
/// - each value is a leaf, or one result of exactly the operator that it names as its definer;
/// - operators read values of leaves and of operators before them, and each version of a tensor follows its previous
/// one
///   in the same storage;
/// - storages are in range, and those that an operator reads and writes ascend, each once;
/// - inputs, outputs, parameters and buffers are values, the first and the last two leaves of their kinds.
/// O(graph).
[[nodiscard]] std::string fault_of(const OpGraph& graph);

}  // namespace autopar
