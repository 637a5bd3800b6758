#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::detail {

/// Refuses trainable tensors that are no parameters of the module and that a backward from the graph's outputs would
/// reach: their gradients would be of one rank's samples, made in another moment than the user's backward, and known to
/// nobody else. What is detached, or read without gradients, is a constant.
/// @throws CaptureError naming the operator that reads the first one, the nearest parameter and the tensor's sizes
void refuse_unregistered_leaves(const OpGraph& graph);

}  // namespace autopar::detail
