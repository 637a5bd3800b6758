#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::trace {

/// Refuses trainable tensors that are not parameters of the module and that a backward from the graph's outputs would
/// reach. Their gradients would cover only one rank's samples, at another time than the user's backward, and no other
/// rank would have them. Tensors that are detached, or read without gradients, are constants.
/// @throws CaptureError naming the operator that reads the first one, the nearest parameter and the tensor's sizes
void refuse_unregistered_leaves(const OpGraph& graph);

}  // namespace autopar::trace
