#pragma once

#include "torch/ir/op_graph.hpp"
#include "torch/replay/replay.hpp"

namespace autopar {

/// Whether an operator takes one tensor apart into views that cover it (unbind, split, chunk), gradients may flow back,
/// and nothing writes that memory from then on.
/// @cost O(ops) for operators of these names
[[nodiscard]] bool takes_apart(const OpGraph& graph, OpId op);

/// Runs such an operator with a history that puts the gradients of the parts together as the tensor itself lies in
/// memory. libtorch puts them together contiguously; where the tensor is a permuted view, as attention's queries, keys
/// and values are of one product, it then copies them once more. Same values to the bit.
/// @pre nobody writes the tensor's memory after the call
void proceed_in_parts(ReplayCall& call);

}  // namespace autopar
