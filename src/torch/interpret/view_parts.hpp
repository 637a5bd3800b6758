#pragma once

#include <vector>

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

/// Whether what it takes apart is the result of a linear layer with a bias, or a view of it, and nothing reads either
/// otherwise.
/// @param uses  graph.uses()
[[nodiscard]] bool takes_linear_apart(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op);

/// Runs such an operator with a history that leads past the views to the layer: it gets the very tensor in which the
/// gradients are put together, and with it, on a GPU, sums over its rows, which its bias's gradient would read all of
/// it for. Where the layer takes none (`takes_summed_columns`) as `proceed_in_parts`. Same values to the bit.
void proceed_in_parts_of_linear(ReplayCall& call);

}  // namespace autopar
