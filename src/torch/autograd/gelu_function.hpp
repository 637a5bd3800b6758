#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::autograd {

/// Whether an operator is GELU and not in place.
[[nodiscard]] bool is_gelu(const OpGraph& graph, OpId op);

/// Whether an operator is GELU of the result of a linear layer with a bias, and nothing else reads that result.
[[nodiscard]] bool reads_linear_alone(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op);

/// Runs GELU by `gelu_of`, which is faster than libtorch's operator on a GPU. Result and gradient are libtorch's to the
/// bit, and both save the same tensor: the operand.
void run_gelu(replay::ReplayCall& call);

/// Like the function above, with a custom autograd function whose gradient brings along the linear layer's bias
/// gradient. Otherwise that layer would read the gradient again to sum its rows. If the layer does not take a bias
/// gradient (`takes_bias_gradient`), the gradient is libtorch's.
void run_gelu_with_bias_gradient(replay::ReplayCall& call);

}  // namespace autopar::autograd
