#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Whether an operator is GELU that makes a result of its own.
[[nodiscard]] bool is_gelu(const OpGraph& graph, OpId op);

/// Whether it is GELU of the result of a linear layer with a bias that nothing else reads.
/// @param uses  graph.uses()
[[nodiscard]] bool reads_linear_alone(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op);

/// Runs a GELU by `gelu_of`, faster than libtorch's operator on a GPU. Result and gradient are libtorch's to the bit,
/// and so is what it keeps: its operand.
void proceed_as_gelu(ReplayCall& call);

/// Likewise, with an autograd function whose gradient brings along sums over its rows: the gradient of the linear
/// layer's bias, which would read it once more. Where the layer takes none (`takes_summed_columns`) the gradient is
/// libtorch's.
void proceed_summing_columns(ReplayCall& call);

}  // namespace autopar
